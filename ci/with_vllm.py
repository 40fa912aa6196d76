"""Run a script where a release of vLLM can be imported, with the libraries that it needs.

    python ci/with_vllm.py [--whole] RELEASE SCRIPT [ARGUMENTS...]

The environment is the one of ``kvfence audit vllm``, made once in the user's cache. ``--whole`` installs the
release with its compiled parts and what a model needs beside it, so that a whole engine runs. That is a build
for CPUs by others than the vLLM project: it is said which one, and which files differ from the project's own.
"""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvfence.checker.audit.releases.fetch import OFFICIAL, OTHERS, SOURCES, fetch, fetch_from
from kvfence.checker.audit.releases.lab import lab_environment, lab_python
from kvfence.checker.audit.releases.release_cache import cache_folder, check_ours, locked
from kvfence.spec.errors import CannotRun

ENGINE_LOCK = Path(__file__).with_name("lock-engine.txt")
"""What a whole engine imports and an audit does not."""
COMPARED = ("vllm/v1", "vllm/distributed/kv_transfer")
"""Folders of vLLM with the code that tests of a whole engine are about."""


def whole(python: Path, version: str) -> Path:
    """The release with its compiled parts, installed into the cache without what it depends on."""
    folder = cache_folder("engine") / f"{version}-{OTHERS}"
    with locked(folder):
        if not (folder / ".ready").is_file():
            print(f"installing vLLM {version} and what an engine needs into {folder} (once)", file=sys.stderr)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            pip += ["--only-binary", ":all:", "--target", str(folder)]
            report = folder.with_name(f".{folder.name}.json")
            for what in (
                ["--require-hashes", "--requirement", str(ENGINE_LOCK)],
                ["--report", str(report), f"{OTHERS}=={version}"],
            ):
                if subprocess.run([*pip, *what], check=False).returncode:
                    raise CannotRun(f"vLLM {version} could not be installed; pip's message is above")
            (folder / ".ready").write_text(installed_as(json.loads(report.read_text())))
        check_ours(folder)
    return folder


def installed_as(report: Any) -> str:
    """Name and SHA-256 of the one wheel that pip's ``report`` says it installed."""
    wheel = report["install"][0]["download_info"]
    digest = wheel["archive_info"].get("hashes", {}).get("sha256", "not reported by pip")
    return f"{wheel['url'].rsplit('/', 1)[-1]}, SHA-256 {digest}"


def differences(official: Path, others: Path) -> list[str]:
    """How the Python files of two trees differ in the folders that are compared: a line for each file."""
    found = []
    for part in COMPARED:
        here, there = (
            {path.relative_to(tree).as_posix() for path in (tree / part).rglob("*.py")}
            for tree in (official, others)
        )
        found += [f"{name}: only in the project's own" for name in here - there]
        found += [f"{name}: only in the build by others" for name in there - here]
        same = here & there
        found += [
            f"{name}: differs"
            for name in same
            if not filecmp.cmp(official / name, others / name, shallow=False)
        ]
    return sorted(found)


def compared(version: str, engine: Path) -> str:
    """What is run instead of the project's own wheel, and every difference between their Python files."""
    official = fetch_from((OFFICIAL,), version)
    found = differences(official.path, engine)
    count = sum(len(list((official.path / part).rglob("*.py"))) for part in COMPARED)
    lines = [
        f"runs: vLLM {version} from {SOURCES[OTHERS]}: {(engine / '.ready').read_text()}",
        f"compared with: {official.origin.line()}",
        f"Python files under {' and '.join(COMPARED)}, {count} of the project's own: "
        f"{len(found) or 'no'} difference{'s' * (len(found) != 1)}",
    ]
    return "\n".join([*lines, *(f"  {line}" for line in found)])


def main() -> int:
    """Runs the script; its exit status."""
    arguments = sys.argv[1:]
    complete = arguments[:1] == ["--whole"]
    arguments = arguments[complete:]
    if len(arguments) < 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    version, script, *rest = arguments
    try:
        python = lab_python(lambda line: print(line, file=sys.stderr))
        release = fetch(version)
        print(release.origin.line(), file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="kvfence-") as scratch:
            environment = lab_environment(release, Path(scratch))
            environment.pop("OMP_NUM_THREADS", None)
            if complete:
                engine = whole(python, version)
                print(compared(version, engine), flush=True)
                rest_of_path = environment["PYTHONPATH"].split(os.pathsep)[1:]
                environment["PYTHONPATH"] = os.pathsep.join([str(engine), *rest_of_path])
            return subprocess.run(
                [str(python), "-W", "ignore", script, *rest], env=environment, check=False
            ).returncode
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
