"""Audits: a connector under test, driven through adverse runs that nobody wrote down beforehand."""
