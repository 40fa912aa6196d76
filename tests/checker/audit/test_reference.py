"""The reference under audit: sound it is clean, and each faulty design is found."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from kvfence.checker.adapters.reference import designs
from kvfence.checker.audit.campaign import campaign
from kvfence.checker.audit.cases.case import Abort, Case, Fail, Reset, Setup, Step, Submit
from kvfence.checker.audit.findings import verdict_of
from kvfence.checker.audit.targets import REFERENCE, Reference
from kvfence.spec.designs import DESIGNS

FAULTY = ("over_pop", "no_flush_on_finish", "cursor_not_rewound")


def test_the_sound_reference_is_clean() -> None:
    found = campaign(Reference("sound"), REFERENCE, budget=600, seed=2, most=80)
    assert [finding.key for finding in found.findings] == []
    assert verdict_of(found) == "holds"
    assert found.counts["loads"]
    assert found.counts["preemptions"]
    assert {name for name, count in found.checks.items() if not count} <= {"HOSTMEM", "EVENTS", "LOAD-ORDER"}


def test_without_torch_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from kvfence.checker.cli.main import main\n"
        "sys.argv = ['kvfence', 'audit', 'reference', '--budget', '5']\n"
        "sys.exit(main())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "pip install 'kvfence[reference]'" in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_a_client_goes_away_while_its_request_waits_for_the_connector() -> None:
    """The second request finds in the tier what the GPU has given away, and waits for the load of it."""
    setup = Setup(block_size=4, gpu_blocks=8, cpu_blocks=24, delay=24, seed=3)
    first = (Submit(16, 1, 0, 16), Step(40), Submit(20, 1, 1, 20), Step(40), Submit(16, 1, 0, 16))
    served = Reference("sound").run(Case(setup, (*first, Step(90))))
    assert served.counts["loads"]
    leaves = (*first, Step(90, until_waits=True), Abort(0, live=True, waits=True))
    assert Reference("sound").run(Case(setup, leaves)).sightings == ()
    found = Reference("free_on_abort").run(Case(setup, leaves))
    assert "FREEZE" in {sighting.invariant for sighting in found.sightings}


def test_a_long_prompt_behind_a_hit_in_a_sliding_group_fits_when_it_is_alone() -> None:
    setup = Setup(
        gpu_blocks=28, cpu_blocks=4, block_size=8, windows=(0, 32), depth=2, token_budget=8, seed=35318
    )
    case = Case(setup, (Submit(32, 1, 1, 32), Submit(121, 1, 1, 32)))
    assert Reference("sound").run(case).sightings == ()


def test_a_store_of_a_generation_that_is_gone_fails_in_silence_whichever_generation_went_last() -> None:
    setup = Setup(block_size=2, gpu_blocks=15, cpu_blocks=50, delay=12, fail_rate=0.1, seed=52240)
    actions = (
        Submit(3, 1), Step(), Step(), Submit(1, 2, after=0), Submit(2, 1), Step(2), Submit(2, 1, 1, 2),
        Submit(6, 1, 3, 6), Step(), Fail(), Submit(9, 2), Step(), Step(), Step(), Submit(12, 1, 1, 2), Step(),
        Step(), Submit(1, 2, after=6), Step(), Submit(7, 1, 3, 6), Step(2), Reset(True, False),
    )  # fmt: skip
    assert Reference("sound").run(Case(setup, actions)).sightings == ()


def test_lazy_stores_come_to_an_end_when_nothing_runs_although_the_tier_is_smaller_than_the_cache() -> None:
    setup = Setup(
        block_size=8, gpu_blocks=14, cpu_blocks=6, windows=(0, 32), lazy=True, token_budget=128, tier="disk",
        delay=36, seed=5807,
    )  # fmt: skip
    actions = (
        Submit(7, 2), Step(), Submit(13, 2), Step(), Submit(1, 1, after=1), Abort(7, live=True), Step(5),
        Submit(14, 4), Submit(6, 4), Step(5), Submit(1, 1), Abort(0, live=True), Step(10), Submit(8, 1),
        Step(), Abort(0, live=True), Step(5), Submit(16, 2), Step(14), Submit(25, 2), Step(),
        Submit(1, 1, after=7), Step(), Abort(0, live=True), Step(), Submit(24, 1), Step(3),
        Abort(5, live=True),
    )  # fmt: skip
    assert Reference("sound").run(Case(setup, actions)).sightings == ()


def test_blocks_that_a_load_of_another_request_was_to_fill_are_not_stored_when_a_reset_comes_first() -> None:
    setup = Setup(
        block_size=8, gpu_blocks=16, cpu_blocks=16, windows=(0, 17), depth=2, ranks=2, token_budget=8,
        tier="disk", delay=36, seed=31903,
    )  # fmt: skip
    actions = (
        Submit(25, 2), Abort(0, live=True), Submit(15, 3), Submit(33, 7), Step(4), Reset(True, False),
        Abort(5, live=True), Step(15), Reset(True), Submit(3, 3, after=2), Submit(1, 1), Submit(24, 5, 4, 16),
        Submit(40, 2), Submit(4, 3, after=2), Step(5), Submit(6, 2, after=0), Submit(4, 1, after=5), Step(3),
        Submit(17, 1, 4, 16), Step(21), Reset(True),
    )  # fmt: skip
    assert Reference("sound").run(Case(setup, actions)).sightings == ()


@pytest.mark.parametrize("design", FAULTY)
def test_a_faulty_design_is_found(design: str) -> None:
    expected = DESIGNS[design].breaks
    found = campaign(Reference(design), REFERENCE, budget=20, seed=2, until=expected, most=500)
    assert expected in {finding.sighting.invariant for finding in found.findings}


@pytest.mark.slow
@pytest.mark.parametrize("design", designs())
def test_every_faulty_design_is_found(design: str) -> None:
    expected = DESIGNS[design].breaks
    found = campaign(Reference(design), REFERENCE, budget=300, seed=1, until=expected)
    assert expected in {finding.sighting.invariant for finding in found.findings}
