"""Which blocks of a table the next token reads, by the kind of the KV-cache group."""

from __future__ import annotations

from math import gcd

from kvfence.spec import events as ev


def kind_of(group: ev.Group) -> ev.GroupKind:
    """The group's kind: as the header states it, or by its window."""
    if group.kind is not None:
        return group.kind
    return "full" if group.window is None else "sliding"


def first_token(group: ev.Group, tokens: int) -> int:
    """The first of ``tokens`` computed tokens that the next one reads; ``tokens`` if it reads none."""
    window = group.window
    match kind_of(group):
        case "sliding" if window is not None:
            return min(tokens, max(0, tokens - window + 1))
        case "chunked" if window is not None:
            return tokens - tokens % window
        case "recurrent":
            return max(0, tokens - 1)
    return 0


def blocks_read(group: ev.Group, tokens: int) -> range:
    """The blocks of the table that the token after ``tokens`` computed ones reads."""
    first, size = first_token(group, tokens), group.block_size
    return range(first // size, -(-tokens // size)) if first < tokens else range(0)


def most_blocks_read(group: ev.Group) -> int | None:
    """The most blocks that a token reads, wherever it stands; None if that grows with the request.

    ``window - 1`` tokens in a row that begin ``offset`` tokens behind the start of a block lie in
    ``ceil((offset + window - 1) / size)`` blocks. A sliding window begins anywhere; a chunk at a multiple of
    its size, which is off the start of a block by a multiple of what both sizes have in common.
    """
    window, size, kind = group.window, group.block_size, kind_of(group)
    if kind == "recurrent":
        return 1
    if kind == "full" or window is None:
        return None
    if window == 1:
        return 0
    step = gcd(window, size) if kind == "chunked" else 1
    return -(-(size - step + window - 1) // size)


def last_reader(group: ev.Group, at: int) -> int | None:
    """The last token that reads block ``at`` of the table; None if each later one does."""
    window, size = group.window, group.block_size
    following = (at + 1) * size  # the first token after the block
    match kind_of(group):
        case "sliding" if window is not None:
            return following + window - 2
        case "chunked" if window is not None:
            return (following - 1) // window * window + window - 1
        case "recurrent":
            return following
    return None
