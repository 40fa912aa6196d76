"""The specification language: see :mod:`kvfence.spec.language`."""

from kvfence.spec.language import *  # noqa: F403
