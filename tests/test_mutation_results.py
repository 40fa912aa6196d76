"""The kept results of ci/mutation.py: nothing survived that is not explained."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

CI = Path(__file__).parent.parent / "ci"


def test_each_mutant_that_survived_is_explained() -> None:
    rows = [json.loads(line) for line in (CI / "mutation_results.jsonl").read_text("utf-8").splitlines()]
    last = {(row["path"], row["was"], row["now"]): row["fate"] for row in rows}
    explained = tomllib.loads((CI / "mutation_explained.toml").read_text("utf-8"))["survivor"]
    why = {(row["path"], row["was"], row["now"]): row["why"] for row in explained}
    assert all(why.values())
    assert [mutant for mutant, fate in last.items() if fate == "survived" and mutant not in why] == []
