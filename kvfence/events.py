"""The events of a connector, which traces are made of: see :mod:`kvfence.spec.events`."""

from kvfence.spec.events import *  # noqa: F403
