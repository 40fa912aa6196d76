"""The bits of a slot's word and of a tag's count; ``kernels.c`` is compiled with these.

A slot has one integer: three counts (holders, open transfers, open promises) and a few flags. A rule's usual
question ("is nothing known about this slot?", "is the label all there is?") is then one comparison.
"""

from __future__ import annotations

from typing import Final

LABEL: Final = 1  # in the prefix index
BAD: Final = 2  # destination of a failed transfer, not written since
FILLING: Final = 4  # destination of an open transfer
FROZEN: Final = 8  # left by a request whose dispatched steps may still read it
NULL_BLOCK: Final = 16  # the null block
REF: Final = 1 << 5  # one holder
BUSY: Final = 1 << 25  # one open transfer that reads or writes the slot
PROMISE: Final = 1 << 44  # one open promise that names the slot
REFS: Final = BUSY - REF
BUSIES: Final = PROMISE - BUSY
PROMISES: Final = (1 << 63) - PROMISE

LABELLED: Final = 1  # one label with the tag
STORED: Final = 1 << 32  # one open store that brings the tag
