"""Lockstep tests of one's own implementation: see :mod:`kvfence.checker.analysis.lockstep`."""

from kvfence.checker.analysis.lockstep import *  # noqa: F403
