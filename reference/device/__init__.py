"""Devices: where the blocks' content lives and who copies it."""
