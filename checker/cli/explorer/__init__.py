"""The explorer: a local page on which a machine is walked step by step."""
