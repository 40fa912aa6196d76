"""Placeholder."""


def test_of(finding, release, connector):
    return None
