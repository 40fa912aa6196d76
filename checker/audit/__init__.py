"""Audits: a connector under test, driven through adverse runs that are drawn at random."""
