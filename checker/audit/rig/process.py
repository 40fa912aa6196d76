"""A rig in a process of its own: started with a release on its path, asked case by case, surely ended."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from kvfence.checker.audit.cases.case import Case, Setup, Step, Submit
from kvfence.checker.audit.cases.outcome import Outcome, Sighting
from kvfence.checker.audit.releases.fetch import Release
from kvfence.checker.audit.releases.lab import Note, lab_environment, lab_python
from kvfence.checker.audit.releases.release_cache import cache_folder
from kvfence.checker.audit.rig.messages import Answer, Ask
from kvfence.spec.errors import CannotRun

START_PATIENCE: Final = 300
CASE_PATIENCE: Final = 30
"""Seconds for one case, which takes some hundredths: then the engine hangs."""


_decode = msgspec.json.Decoder(Answer).decode


class Rig:
    """Runs cases on ``release`` with ``connector``, or without one. A target of a campaign.

    A process that hangs or dies is replaced, and that it did is a sighting. CannotRun if none can be started.
    """

    def __init__(self, release: Release, connector: str | None, note: Note | None = None) -> None:
        self.release, self.connector, self.note = release, connector, note
        self.name = f"vllm {release.version} {f'with {connector}' if connector else 'without a connector'}"
        self._scratch = tempfile.TemporaryDirectory(prefix="kvfence-audit-")
        self._python = lab_python(note)
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self.errors: list[str] = []

    def start(self) -> None:
        """Starts the process and waits until it is ready."""
        environment = lab_environment(self.release, Path(self._scratch.name)) | {
            "KVFENCE_SCRATCH": self._scratch.name,
            "VLLM_CACHE_ROOT": str(cache_folder("vllm") / self.release.mark),
        }
        if self.connector and "@" in self.connector:
            # Its module is where the user's Python finds it.
            own = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], *own))
        self._log = (Path(self._scratch.name) / "log").open("ab")
        # In a session of its own: Ctrl-C is for the audit, which then ends the rig.
        self._process = subprocess.Popen(
            [str(self._python), "-m", "kvfence.checker.audit.rig.rig"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            cwd=self._scratch.name,
            start_new_session=True,
        )
        self._rest = b""
        line = self._read_line(START_PATIENCE)
        answer = _decode(line) if line else Answer(error="it ended, or did not become ready")
        if answer.error:
            self.stop()
            problem = f"{answer.error}{self._last_words()}"
            raise CannotRun(f"vLLM {self.release.version} cannot be driven: {problem}")

    def run(self, case: Case, record: Path | None = None, connector: str | None = "") -> Outcome:
        """Runs ``case``; ``record``: a folder for traces, ``connector``: another than the rig's, or None."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        chosen = self.connector if connector == "" else connector
        ask = Ask(case=case, connector=chosen, record=str(record.resolve()) if record else "")
        try:
            self._process.stdin.write(msgspec.json.encode(ask) + b"\n")
            self._process.stdin.flush()
            line = self._read_line(CASE_PATIENCE)
        except BrokenPipeError:
            line = b""
        if line is None:
            self.stop()
            return _lost("the engine hangs", f"no answer within {CASE_PATIENCE} s")
        if not line:
            self.stop()
            return _lost("the engine's process dies", f"the process ended{self._last_words()}")
        answer = _decode(line)
        if answer.outcome is None:
            self.errors.append(answer.error)
            problem = f"the rig could not drive a case: {answer.error[:300]}"
            return Outcome(unchecked=(problem,), refused=answer.error)
        return answer.outcome

    def check(self) -> None:
        """Tries the connector on the plainest case. CannotRun if it cannot be made, or does nothing."""
        outcome = self.run(Case(Setup(), (Submit(9, 1), Step(4))))
        if outcome.refused:
            raise CannotRun(f"{self.name} cannot be driven: {outcome.refused}")

    def _read_line(self, patience: float) -> bytes | None:
        """The next line; empty if there will be none, None if there was none in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + patience
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            more = os.read(self._process.stdout.fileno(), 1 << 20)
            if not more:
                return b""
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        log = Path(self._scratch.name) / "log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
        return f" (its last words: {' '.join(lines[-1].split())[:300]})" if lines else ""

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.close()
        self._process = None

    def close(self) -> None:
        """Ends the process and removes what it wrote."""
        self.stop()
        self._scratch.cleanup()


def _lost(cause: str, detail: str) -> Outcome:
    return Outcome(sightings=(Sighting(invariant="PROGRESS", cause=cause, evidence="stall", detail=detail),))
