"""What the pages name is there: commands and their options, files, folders, and places on other pages."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from kvfence.checker.analysis.verify import verify
from kvfence.checker.cli.app import app
from kvfence.checker.report.text.verdicts import verification_text

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.md", "docs/*.md", "docs/*/README.md", "examples/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[\s(])kvfence ((?:[a-z]+(?=[\s)]|$) ?)*)([^`]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
FILE = re.compile(r"[\w.-]+(?:/[\w .-]+)*\.(?:py|c|h|cu|cuh|md|toml|txt|in|json|jsonl|yml|html|sh)")
FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)*/")
OF_EXAMPLES = re.compile(
    r"(FILE|DIR|NAME|CASE|RELEASE)\b|(my|mine|own|your)_?\w*\.py|(test_)?two_tier\.py|"
    r"(connector|serving)_\w+\.py|\w+\.(jsonl|html|json)$|vllm/|kvfence-audit/|docs/files\.md"
)
"""Files that are a reader's own, that a command writes, or that belong to vLLM."""


@cache
def tracked() -> list[str]:
    """Every file of the repository, and every folder with a slash behind it."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    folders = {f"{folder}/" for file in files for folder in Path(file).parents}
    return [f"/{name}" for name in (*files, *folders)]


@cache
def command_of(words: tuple[str, ...]) -> tuple[Any, tuple[str, ...]] | None:
    """The command that the words name, with the words that are its arguments; None if there is none."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return None
        command, words = command.commands[words[0]], words[1:]
    return command, words


def code_of(page: Path) -> list[str]:
    """The pieces of code of a page: a usage or a session is one piece for each command."""
    text = page.read_text(encoding="utf-8")
    pieces = SPAN.findall(FENCED.sub("", text))
    for block in FENCED.findall(text):
        lines = re.sub(r"\\\n|\n(?=[ ]+[\w\[-])", " ", block)
        pieces += [line.removeprefix("$ ").partition(" #")[0] for line in lines.splitlines()]
    return pieces


def known_options(command: Any) -> set[str]:
    """The spellings of a command's options."""
    return {"--help"} | {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    wrong = []
    for piece in code_of(page):
        if not re.match(r"kvfence [a-z-]|torchrun .*-m kvfence", piece):
            continue
        for words, rest in COMMAND.findall(piece.partition("&&")[0]):
            found = command_of(tuple(words.split()))
            if found is None:
                wrong.append(f"kvfence {words}")
                continue
            named = OPTION.findall(rest.partition("$ ")[0])
            wrong += [f"kvfence {words}{o}" for o in named if o not in known_options(found[0])]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_folder_of_a_page_exists(page: Path) -> None:
    def is_there(name: str) -> bool:
        name = name.removeprefix("./")
        return (page.parent / name).exists() or any(place.endswith(f"/{name}") for place in tracked())

    spans = SPAN.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    names = [span for span in spans if FILE.fullmatch(span) or FOLDER.fullmatch(span)]
    assert not [name for name in names if not is_there(name) and not OF_EXAMPLES.match(name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, place = link.partition("#")
        target = page.parent / name if name else page
        heads = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE) if place else []
        anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
        if not target.exists() or (place and place not in anchors):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("design", ["unpinned_lookup", pytest.param("sound", marks=pytest.mark.slow)])
def test_the_readme_shows_what_verify_prints(design: str) -> None:
    def timeless(text: str) -> str:
        text = re.sub(r"^seconds .*$", "seconds", text, flags=re.MULTILINE)
        return re.sub(r"[\d.]+ s\.$", "s.", text, flags=re.MULTILINE)

    printed = timeless(verification_text(verify(design), width=100))
    blocks = FENCED.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (shown,) = (block for block in blocks if f"{design}: " in block)
    assert timeless(shown.partition("...\n")[2] or shown).strip() in printed


def test_the_rules_see_what_is_not_there(tmp_path: Path) -> None:
    assert command_of(("frobnicate",)) is None
    assert command_of(("audit", "nothing")) is None
    verify = command_of(("verify",))
    assert verify is not None
    assert {"--engine", "--size"} <= known_options(verify[0])
    assert "--frobnicate" not in known_options(verify[0])
    page = tmp_path / "page.md"
    fenced = "```\n$ kvfence new DIR   # a comment\nusage [--a]\n      [--b]\n```\n"
    page.write_text(f"`kvfence verify --frobnicate`\n\n{fenced}")
    assert code_of(page) == ["kvfence verify --frobnicate", "kvfence new DIR  ", "usage [--a]       [--b]"]
