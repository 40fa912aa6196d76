"""What of a release is observed: each hook is checked, or not checked for a stated reason."""

from __future__ import annotations

import importlib
from typing import Any, Final

CHECKED: Final = "checked"


class Coverage(dict[str, str]):
    """By name of the hook: ``checked``, or ``not checked: `` and why."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: set[str] = set()

    def checked(self, hook: str, *, needed: bool = True) -> None:
        """The hook is in place."""
        self.setdefault(hook, CHECKED)
        if needed:
            self.needed.add(hook)

    def missing(self, hook: str, why: str, *, needed: bool = True) -> None:
        """The hook is not in place; without a ``needed`` one nothing is determined."""
        self[hook] = f"not checked: {why}"
        if needed:
            self.needed.add(hook)

    def module_with(self, name: str, kind: str) -> Any:
        """The module ``name`` if it has the class ``kind``; without either the class is missing, and None."""
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            self.missing(kind, f"{name} cannot be imported: {error}")
            return None
        if hasattr(module, kind):
            return module
        self.missing(kind, f"{name} has no {kind}")
        return None

    def unseen(self, message: str) -> None:
        """Record that no hook observes parts of a connector: its name, and what is not judged."""
        name, _, what = message.partition(": ")
        self.missing(name, what)

    @property
    def undetermined(self) -> bool:
        """Whether something that a verdict needs was not observed."""
        return not self.needed or any(self[hook] != CHECKED for hook in self.needed)
