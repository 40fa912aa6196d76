"""Puts every vLLM engine and block pool of a test run under the ledger: ``pytest --kvfence=raise``.

Nothing of kvfence or vLLM is imported unless the option is given.

* ``raise``: the violation is raised in the call that shows it, and a test in which one happened fails, even
  if the exception was caught.
* ``log``, ``count``: tests are not disturbed; the summary says what was found.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option ``--kvfence``."""
    group = parser.getgroup("kvfence")
    group.addoption(
        "--kvfence",
        choices=("raise", "log", "count"),
        default=None,
        help="judge every vLLM BlockPool and offload connector of the tests by kvfence's invariants",
    )
    group.addoption(
        "--kvfence-record", metavar="DIR", default=None, help="write what led to each violation to DIR"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put the hooks in, if the option is given."""
    mode = config.getoption("--kvfence")
    if mode is None:
        return
    try:
        from kvfence.checker.adapters.vllm.runtime import install

        runtime = install(mode, config.getoption("--kvfence-record"))
    except ImportError as error:
        raise pytest.UsageError(
            f"--kvfence={mode} needs an importable vLLM, and {error.name or error} is missing"
        ) from error
    config.pluginmanager.register(_Fence(runtime, mode), "kvfence-fence")


class _Fence:
    """What happens around tests when the option is given."""

    def __init__(self, runtime: Any, mode: str) -> None:
        self.runtime = runtime
        self.mode = mode
        self.found: list[tuple[str, Any]] = []
        self.test = ""
        runtime.on_violation = self.violated
        runtime.races.on_race = self.violated

    def violated(self, violation: Any) -> None:
        """The ledger found something, or the race checker."""
        self.found.append((self.test, violation))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fail a test in which an invariant was broken, if it passed otherwise."""
        self.test = item.nodeid
        before = len(self.found)
        result = yield
        if self.mode == "raise" and len(self.found) > before:
            pytest.fail(f"kvfence: {self.found[before][1]}", pytrace=False)
        return result

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What was found, and what was not checked."""
        runtime = self.runtime
        from kvfence.checker.adapters.vllm.runtime import facts

        known = facts(runtime)
        terminalreporter.section("kvfence")
        terminalreporter.write_line(
            f"{len(runtime.guards)} engines kept, {known['events']} events judged, "
            f"{sum(known['violations'].values())} violations"
        )
        for test, violation in self.found[:20]:
            terminalreporter.write_line(f"{test}: {violation}")
        if len(self.found) > 20:
            terminalreporter.write_line(f"and {len(self.found) - 20} more")
        for message in runtime.not_checked():
            terminalreporter.write_line(f"undetermined: {message}")

    def pytest_unconfigure(self) -> None:
        """Take the hooks out again."""
        from kvfence.checker.adapters.vllm.runtime import uninstall

        uninstall()
