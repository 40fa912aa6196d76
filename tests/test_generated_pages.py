"""Generated pages are what their generators print; those of the specification have all headings."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES

DOCS = Path(__file__).parents[1] / "docs"
HEADINGS = {
    "invariants": {row.id for row in INVARIANTS},
    "designs": set(DESIGNS),
    "machines": set(MACHINES),
}


@pytest.mark.parametrize("name", [*HEADINGS, "trace-format", "order-format"])
def test_the_page_is_what_its_generator_prints(name: str) -> None:
    generator = f"docs/generate_{name.replace('-', '_')}.py"
    command = [sys.executable, DOCS.parent / generator]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert printed == page, f"run: .venv/bin/python {generator} > docs/{name}.md, or make docs"


@pytest.mark.parametrize("name", HEADINGS)
def test_the_page_has_a_heading_for_each(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    assert headings == HEADINGS[name]


@pytest.mark.parametrize("name", HEADINGS)
def test_links_between_the_pages_lead_somewhere(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for part in page.split("](")[1:]:
        target, _, heading = part.partition(")")[0].partition("#")
        other = (DOCS / target).read_text(encoding="utf-8") if target else page
        assert f"## {heading}".lower() in other.lower(), f"{target}#{heading}"
