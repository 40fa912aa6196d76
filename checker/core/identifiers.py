"""Names of a machine in other languages: none is a word of theirs, and no two are one."""

from __future__ import annotations

from collections.abc import Collection, Hashable


def ascii_word(text: str) -> str:
    """The text as letters, digits and underscores of ASCII; others as their code point."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else f"_{ord(c):x}_" for c in text)


class Names:
    """Gives each thing a name like the one wanted, which nothing else has and no ``reserved`` word is."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self.taken = set(reserved)
        self._given: dict[Hashable, str] = {}

    def of(self, key: Hashable, wanted: str) -> str:
        """The name of the thing that ``key`` tells apart; the same each time."""
        if key not in self._given:
            name, count = wanted, 1
            while name in self.taken:
                count += 1
                name = f"{wanted}_{count}"
            self.taken.add(name)
            self._given[key] = name
        return self._given[key]
