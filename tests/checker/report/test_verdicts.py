"""The table of verdicts keeps to the width, whatever the number of machines."""

from __future__ import annotations

import msgspec
import pytest

from kvfence.checker.analysis.verify import verify
from kvfence.checker.report.text.verdicts import verification_text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_every_machine_has_its_column_and_no_line_is_too_long(width: int, count: int) -> None:
    found = verify(machine="block_pool", sizes={"Block": 2})
    (one,) = found.machines
    names = [f"machine_{k}" for k in range(count)]
    found = msgspec.structs.replace(
        found, machines=tuple(msgspec.structs.replace(one, machine=name) for name in names)
    )
    printed = verification_text(found, width=width)
    assert all(len(line) <= width for line in printed.splitlines())
    headers = [line.split() for line in printed.splitlines() if line.startswith("invariant ")]
    assert [name for header in headers for name in header[1:-1]] == names
    assert len([line for line in printed.splitlines() if line.startswith("CONSERVE ")]) == len(headers)
    assert (len(headers) == 1) == (width >= 46 + count * (2 + len("machine_10"))) or count == 1
