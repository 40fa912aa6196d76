"""What no file of the repository may contain or be called."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common"}
# Written in pieces so that this file does not contain what it looks for.
PRIVATE = re.compile(
    "|".join(
        (
            r"/wor" + r"k/",
            r"/ro" + r"ot/",
            r"/tm" + r"p/contract",
            r"files\.python" + r"hosted",
            r"py" + r"pi\.org",
        )
    )
)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not [
        str(path.relative_to(ROOT)) for path in tracked() if path.suffix == ".py" and path.stem in VAGUE
    ]


def test_no_file_names_a_path_of_one_machine_or_a_package_host() -> None:
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in PRIVATE.finditer(text)]
    assert not found


def test_the_rule_sees_a_private_path() -> None:
    assert PRIVATE.search("see /wor" + "k/main/README.md")
