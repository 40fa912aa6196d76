"""Every public report that the designs name has a test of its own."""

import re
from pathlib import Path

from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS

HERE = Path(__file__).parent
SAID = "\n".join(file.read_text(encoding="utf-8").partition('"""\n\n')[0] for file in HERE.glob("test_*.py"))


def test_each_report_of_a_design_or_an_invariant_has_a_test() -> None:
    named = {report for row in DESIGNS.values() for report in row.reports}
    named |= {report for row in INVARIANTS for report in row.reports}
    assert {report for report in named if not re.search(rf"{re.escape(report)}\b", SAID)} == set()


def test_each_file_is_named_after_its_report() -> None:
    for file in HERE.glob("test_*_[0-9]*.py"):
        project, number = re.fullmatch(r"test_([a-z]+)_(\d+)", file.stem).groups()  # type: ignore[union-attr]
        assert file.read_text(encoding="utf-8").lower().startswith(f'"""{project}#{number}: ')
