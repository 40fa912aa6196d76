"""Makes a case smaller as long as it shows the same: fewer actions, smaller numbers, a plainer setup."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from kvfence.checker.audit.cases.case import Abort, Action, Case, Hold, Setup, Step, Submit, problem_of

Shows = Callable[[Case], bool]
"""Whether a case still shows it; may raise to stop the shrinking."""


def shrink(case: Case, shows: Shows, more_time: Callable[[], bool]) -> Case:
    """The smallest case found that ``shows`` what ``case`` does, until there is no more time."""
    tried: set[bytes] = set()

    def good(candidate: Case) -> bool:
        mark = msgspec.json.encode(candidate)
        if mark in tried or problem_of(candidate):
            return False
        tried.add(mark)
        return shows(candidate)

    smaller = True
    while smaller and more_time():
        smaller = False
        for candidates in (_fewer_actions, _plainer_setup, _smaller_numbers):
            again = True
            while again and more_time():
                again = False
                for candidate in candidates(case):
                    if not more_time():
                        return case
                    if candidate.size < case.size and good(candidate):
                        case, smaller, again = candidate, True, True
                        break
    return case


def _fewer_actions(case: Case) -> Iterator[Case]:
    count = len(case.actions)
    length = count // 2
    while length:
        for begin in range(count - length, -1, -length):
            yield without(case, begin, begin + length)
        length //= 2


def without(case: Case, begin: int, end: int) -> Case:
    """``case`` without its actions ``begin`` up to, not including, ``end``, and what depends on them."""
    numbers: dict[int, int] = {}
    kept: list[Action] = []
    old = 0
    for index, action in enumerate(case.actions):
        cut = begin <= index < end
        if isinstance(action, Submit):
            number, old = old, old + 1
            if cut or (action.after >= 0 and action.after not in numbers):
                continue
            numbers[number] = len(numbers)
            after = numbers.get(action.after, -1)
            kept.append(action if after == action.after else msgspec.structs.replace(action, after=after))
        elif isinstance(action, Abort) and not action.live:
            if not cut and action.request in numbers:
                kept.append(Abort(numbers[action.request]))
        elif not cut:
            kept.append(action)
    return Case(case.setup, tuple(kept))


def _plainer_setup(case: Case) -> Iterator[Case]:
    plain = Setup()
    for name in Setup.__struct_fields__:
        value, usual = getattr(case.setup, name), getattr(plain, name)
        if value != usual and name not in {"gpu_blocks", "cpu_blocks"}:
            yield Case(msgspec.structs.replace(case.setup, **{name: usual}), case.actions)
    if len(case.setup.windows) > 2:
        yield Case(msgspec.structs.replace(case.setup, windows=case.setup.windows[:2]), case.actions)


def _smaller_numbers(case: Case) -> Iterator[Case]:
    for index, action in enumerate(case.actions):
        for changed in _smaller(action, case.setup.block_size):
            yield Case(case.setup, (*case.actions[:index], changed, *case.actions[index + 1 :]))


def _smaller(action: Action, block: int) -> Iterator[Action]:
    match action:
        case Step(times) if times > 1 or action.until_waits:
            if action.until_waits:
                yield Step(times)
            for less in dict.fromkeys((1, times // 2, times - 1)):
                if 0 < less < times:
                    yield msgspec.structs.replace(action, times=less)
        case Hold(ticks) if ticks > 1:
            yield from (Hold(less) for less in dict.fromkeys((1, ticks // 2, ticks - 1)))
        case Abort(request, live) if live and (request or action.waits):
            if action.waits:
                yield Abort(request, live=True)
            for less in dict.fromkeys((0, request - 1)):
                if 0 <= less < request:
                    yield msgspec.structs.replace(action, request=less)
        case Submit():
            for name, least in (("prompt", 1), ("output", 1), ("shared", 0), ("family", 0), ("priority", 0)):
                value = getattr(action, name)
                for less in dict.fromkeys((least, value // 2, value - block, value - 1)):
                    if least <= less < value:
                        yield msgspec.structs.replace(action, **{name: less})
        case _:
            return
