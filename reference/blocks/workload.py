"""Requests and where they come from: Mooncake's production traces, and the content keys of their blocks."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.errors import WorkloadError

SPAN: Final = 512
"""Tokens that one hash id of a Mooncake trace stands for."""
LONGEST_LINE: Final = 16 * 2**20
LARGEST_SIZE: Final = 2**31 - 1
BETWEEN: Final = 4
"""Requests between one and its repetition, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """What a request asks for, and what its tokens are.

    Token ``t`` below ``known`` is determined, together with all tokens before it, by ``hash_ids[t //
    span]``; later ones are this request's own. A production trace knows the prompt; a test may also fix
    output tokens, so that a later prompt can extend them.
    """

    uid: int
    prompt: int
    output: int
    hash_ids: npt.NDArray[np.int64]
    known: int
    span: int = SPAN


def synthetic(
    uid: int, prompt: int, output: int, family: int, shared: int | None = None, span: int = 16
) -> RequestSpec:
    """A request whose first ``shared`` tokens (all of its prompt by default) are those of ``family``, the
    rest its own.

    Sizes in tokens; ``shared`` is rounded down to whole spans unless it is the whole prompt.
    """
    ids = np.arange(-(-prompt // span), dtype=np.int64)
    common = ids.size if shared is None else shared // span
    own = np.where(ids < common, (family + 1) << 32, (uid + 1) << 44)
    return RequestSpec(uid, prompt, output, own + ids, prompt, span)


def conversations(
    requests: int, seed: int, families: int = 4, longest: int = 200, span: int = 4
) -> Iterator[RequestSpec]:
    """Small traffic for tests: prompts of 1 .. ``longest`` tokens that share prefixes within ``families``."""
    draw = random.Random(seed)
    for uid in range(requests):
        prompt = draw.randint(1, longest)
        shared = draw.choice([None, draw.randint(0, prompt)])
        yield synthetic(uid, prompt, draw.randint(1, 40), draw.randrange(families), shared, span)


def sent_again(requests: Iterable[RequestSpec], rate: float, seed: int) -> Iterator[RequestSpec]:
    """``requests``, of which ``rate`` come a second time with the same prompt, at most BETWEEN others later.

    Numbered anew in the order in which they come: each samples its own output.
    """
    draw = random.Random(seed)
    uid = 0
    again: list[tuple[int, RequestSpec]] = []
    for number, spec in enumerate(requests):
        due = [one for when, one in again if when <= number]
        again = [(when, one) for when, one in again if when > number]
        if draw.random() < rate:
            again.append((number + 1 + draw.randint(0, BETWEEN), spec))
        for one in (*due, spec):
            yield replace(one, uid=uid)
            uid += 1
    for _, one in again:
        yield replace(one, uid=uid)
        uid += 1


def block_keys(spec: RequestSpec, block_size: int, tokens: int) -> npt.NDArray[np.int64]:
    """64-bit content keys (non-negative) of the full blocks among the first ``tokens`` tokens.

    A block's key is made of what determines its last token's prefix, so equal keys mean equal prefixes for
    any block size.
    """
    blocks = np.arange(tokens // block_size, dtype=np.int64)
    last = (blocks + 1) * block_size - 1
    known = last < spec.known
    seed = np.full(blocks.size, -1 - spec.uid, np.int64)
    seed[known] = spec.hash_ids[last[known] // spec.span]
    return _mix(seed, last)


def _mix(seed: npt.NDArray[np.int64], position: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """splitmix64's finaliser over both numbers; the top bit is cleared so that keys stay non-negative."""
    x = seed.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + position.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(1)).astype(np.int64)


class _Line(msgspec.Struct, gc=False):
    """One line of a Mooncake trace: times in ms, lengths in tokens."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_mooncake(path: Path, limit: int | None = None) -> Iterator[RequestSpec]:
    """The requests of a Mooncake trace in file order, one line at a time. Raises WorkloadError.

    Arrival times are checked but not kept: the serving loop is closed, a request arrives when there is room
    to wait.
    """
    if limit is not None and limit < 1:
        raise WorkloadError(f"{path}: a limit of {limit} requests leaves nothing to run; give 1 or more")
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        raise WorkloadError(f"{path}: no such file; give a Mooncake trace (JSON lines)") from None
    except IsADirectoryError:
        raise WorkloadError(f"{path}: is a folder; give the trace file in it") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be opened: {error.strerror}") from None
    with stream:
        yield from _requests(path, stream.readline, limit)


def _requests(path: Path, readline: Callable[[int], bytes], limit: int | None) -> Iterator[RequestSpec]:
    decode = msgspec.json.Decoder(_Line, strict=True).decode
    number = 0
    uid = 0
    while limit is None or uid < limit:
        line = readline(LONGEST_LINE + 1)
        number += 1
        if not line:
            break
        if len(line) > LONGEST_LINE:
            raise WorkloadError(
                f"{path}:{number}: line longer than {LONGEST_LINE >> 20} MiB; not a Mooncake trace"
            )
        if not line.strip():
            continue
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == 1 and line.startswith(b'{"format":"kvfence-'):
                raise WorkloadError(f"{path}: is a trace, not a workload; use kvfence check") from None
            what = (
                "cut off in the middle" if not line.endswith(b"\n") else "not a request of a Mooncake trace"
            )
            raise WorkloadError(f"{path}:{number}: {what}: {error}") from None
        yield _checked(path, number, uid, record)
        uid += 1
    if not uid:
        raise WorkloadError(f"{path}: the file is empty; a trace has one request a line")


def _checked(path: Path, number: int, uid: int, record: _Line) -> RequestSpec:
    prompt, output = record.input_length, record.output_length
    for name, value in (("input_length", prompt), ("output_length", output)):
        if not 1 <= value <= LARGEST_SIZE:
            raise WorkloadError(
                f"{path}:{number}: {name} is {value}; a request has 1 to {LARGEST_SIZE} tokens"
            )
    wanted = -(-prompt // SPAN)
    if len(record.hash_ids) != wanted:
        raise WorkloadError(
            f"{path}:{number}: {len(record.hash_ids)} hash_ids for {prompt} tokens; "
            f"one for each {SPAN} tokens makes {wanted}"
        )
    try:
        hash_ids = np.array(record.hash_ids, np.int64)
    except OverflowError:
        raise WorkloadError(f"{path}:{number}: a hash id does not fit into 64 bits") from None
    if hash_ids.min() < 0:
        raise WorkloadError(f"{path}:{number}: hash id {hash_ids.min()} is negative")
    return RequestSpec(uid, prompt, output, hash_ids, prompt)
