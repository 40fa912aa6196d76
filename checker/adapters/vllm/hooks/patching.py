"""Methods of vLLM's classes replaced by observing ones, and put back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from kvfence.checker.adapters.vllm.notes.compiled_hooks import Compiled, hook
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage

MARK: Final = "__kvfence_original__"

Method = Callable[..., Any]

_ABSENT: Final = object()


class NotSeenError(Exception):
    """A method cannot be observed in this release, for the reason given."""


class Patches:
    """All replaced attributes of one instrumentation."""

    def __init__(self, coverage: Coverage, *, compiled: bool = False) -> None:
        self.coverage = coverage
        self.compiled = compiled
        """Whether compiled hooks are used where there are any."""
        self._undo: list[tuple[Any, str, Any]] = []

    def mark(self, owner: Any, name: str, value: Any = None) -> None:
        """Give all instances of ``owner`` an attribute, which is ``value`` until it is set.

        Looked at by name, it costs nothing; looked at in ``__dict__``, all attributes of the instance would
        become slow, since Python keeps them otherwise until somebody asks for a dictionary.
        """
        if name not in owner.__dict__:
            setattr(owner, name, value)
            self._undo.append((owner, name, _ABSENT))

    def wrap(
        self,
        owner: Any,
        name: str,
        wrapper: Callable[[Method], Method],
        *,
        parameters: Sequence[str] = (),
        needed: bool = True,
        absent_is_fine: bool = False,
        compiled: Compiled | None = None,
    ) -> None:
        """Replace ``owner.name`` by ``wrapper(original)``.

        ``parameters``: names that the original's parameters must begin with, after ``self``. If the method is
        missing or has others, the hook counts as not checked. ``compiled``: what takes the ordinary case.
        """
        named = f"{owner.__name__.rpartition('.')[2]}.{name}"
        original = owner.__dict__.get(name)
        if original is None and absent_is_fine:
            return
        static = isinstance(original, staticmethod)
        function: Any = original.__func__ if static else original
        try:
            mine = any(done[:2] == (owner, name) for done in self._undo)
            if original is None:
                raise NotSeenError("this release has no such method")
            if getattr(original, MARK, None) is not None and not mine:
                raise NotSeenError("another instrumentation is in place")
            _require(original, parameters)
            made = wrapper(function)
            if compiled is not None and self.compiled:
                made = hook(compiled, function, made)
        except NotSeenError as why:
            self.coverage.missing(named, str(why), needed=needed)
            return
        replaced = functools.wraps(function)(made)
        setattr(replaced, MARK, function)
        setattr(owner, name, staticmethod(replaced) if static else replaced)
        self._undo.append((owner, name, original))
        self.coverage.checked(named, needed=needed)

    def remove(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            owner, name, original = self._undo.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def observing(
    observer_of: Callable[[Any], Any],
) -> Callable[[Callable[..., Any]], Callable[[Method], Method]]:
    """Make wrappers of functions that are given what observes an object, a method, and a call of it.

    ``observer_of`` finds what observes an object; where that is None, the method is called alone.
    """

    def observed(function: Callable[..., Any]) -> Callable[[Method], Method]:
        def wrapper(original: Method) -> Method:
            def method(self: Any, *args: Any, **named: Any) -> Any:
                observer = observer_of(self)
                if observer is None:
                    return original(self, *args, **named)
                return function(observer, original, self, *args, **named)

            return method

        return wrapper

    return observed


def shaped(original: Method, source: str, **names: Any) -> Method:
    """The function ``hook`` of ``source`` with the parameters of ``original``; NotSeenError if any number.

    ``source`` has ``PARAMETERS`` where they are declared, and ``original(ARGUMENTS)`` where it is called.
    Python calls such a function in half the time of one that takes ``*args, **named``.
    """
    declared, passed, defaults = list[str](), list[str](), dict[str, Any]()
    starred = False
    for name, parameter in inspect.signature(original).parameters.items():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise NotSeenError("it takes any number of arguments")
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            declared.append("*")
        passed.append(f"{name}={name}" if starred else name)
        if parameter.default is parameter.empty:
            declared.append(name)
        else:
            defaults[f"default_{name}"] = parameter.default
            declared.append(f"{name}=default_{name}")
    text = source.replace("PARAMETERS", ", ".join(declared)).replace("ARGUMENTS", ", ".join(passed))
    space: dict[str, Any] = {"original": original, **names, **defaults}
    exec(compile(text, "<kvfence hook>", "exec"), space)
    hook: Method = space["hook"]
    return hook


def _require(original: Any, parameters: Sequence[str]) -> None:
    """Raise NotSeenError unless the parameters of a method begin with these, after ``self``."""
    try:
        names = list(inspect.signature(original).parameters)
    except (TypeError, ValueError):
        raise NotSeenError("its signature cannot be read") from None
    if names and names[0] == "self":
        names = names[1:]
    if list(parameters) != names[: len(parameters)]:
        raise NotSeenError(f"its parameters are {', '.join(names)}, not {', '.join(parameters)}")
