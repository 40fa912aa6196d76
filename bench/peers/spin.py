"""The benchmark machine in Promela, for Spin's breadth-first search.

One process takes one step after another; each is a ``d_step``, so that Spin sees no state in between, and
asserts the invariants after it.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from peers import Found, Unusable, output

FLAGS = ("-O3", "-march=native", "-w", "-DBFS", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=12000")
STAGES = ("FREE", "FILLING", "CACHED", "EVICTING")
PHASES = ("IDLE", "MATCHED", "ALLOCATED", "LOADING", "FINISHED")


def version() -> str:
    """Spin's own words. Unusable when it is not installed."""
    if shutil.which("spin") is None:
        raise Unusable("spin is not installed (Debian package spin)")
    return output(["spin", "-V"], Path.cwd()).strip()


def run(blocks: int, requests: int, folder: Path, expected: int) -> Found:
    """Search once, breadth first, one thread, states stored whole in a table sized for those expected."""
    program = folder / f"spin-{blocks}-{requests}"
    if not program.exists():
        (folder / "kvlife.pml").write_text(source(blocks, requests))
        output(["spin", "-a", "kvlife.pml"], folder)
        output(["cc", *FLAGS, "-o", str(program), "pan.c"], folder)
    start = time.perf_counter()
    text = output([str(program), "-m100000", f"-w{expected.bit_length()}"], folder)
    seconds = time.perf_counter() - start
    if "errors: 0" not in text or "max search depth too small" in text or "out of memory" in text:
        raise Unusable(f"spin did not finish: {text[-300:]}")
    states, transitions = (
        int(re.search(rf"(\d+) {what}", text)[1])  # type: ignore[index]
        for what in ("states, stored", "transitions")
    )
    depth = re.search(r"depth reached (\d+)", text)
    # Spin counts arriving in the initial state as a transition
    return Found(states, transitions - 1, int(depth[1]) if depth else None, seconds)


def source(blocks: int, requests: int) -> str:
    """The Promela text. Positions are separate variables, as an array begins with one value in each place."""
    each_block, each_request = range(blocks), range(requests)
    lines = [
        *(f"#define {name} {k}" for k, name in enumerate(STAGES)),
        *(f"#define {name} {k}" for k, name in enumerate(PHASES)),
        f"#define NONE {blocks}",
        "#define IDLE_BLOCK(b) (stage[b] == CACHED && refs[b] == 0 && storing[b] == 0)",
        f"byte stage[{blocks}] = FREE, refs[{blocks}] = 0;",
        f"byte phase[{requests}] = IDLE, held[{requests}] = NONE;",
        f"bit storing[{blocks}] = 0;",
        *(f"byte pos{b} = {b};" for b in each_block),
        f"#define GOOD ({' && '.join(_invariants(blocks, requests))})",
        "init {", "  do",
    ]  # fmt: skip

    def step(guard: str, *effects: str) -> None:
        lines.append(f"  :: d_step {{ {guard} -> {' '.join(e + ';' for e in effects)} assert(GOOD) }}")

    def touched(b: int) -> list[str]:
        others = [f"pos{c} = (pos{c} > pos{b} -> pos{c} - 1 : pos{c})" for c in each_block if c != b]
        return [*others, f"pos{b} = {blocks - 1}"]

    for r in each_request:
        mine = f"held[{r}]"
        waiting = f"(phase[{r}] == MATCHED || phase[{r}] == ALLOCATED)"
        for b in each_block:
            step(
                f"phase[{r}] == IDLE && stage[{b}] == CACHED && refs[{b}] < 2",
                *touched(b), f"phase[{r}] = MATCHED", f"{mine} = {b}", f"refs[{b}] = refs[{b}] + 1",
            )  # fmt: skip
            step(
                f"phase[{r}] == IDLE && stage[{b}] == FREE",
                *touched(b), f"phase[{r}] = ALLOCATED", f"{mine} = {b}", f"stage[{b}] = FILLING",
                f"refs[{b}] = 1",
            )  # fmt: skip
        step(f"{waiting} && storing[{mine}] == 0", f"phase[{r}] = LOADING")
        step(
            f"phase[{r}] == LOADING",
            f"stage[{mine}] = (stage[{mine}] == FILLING -> CACHED : stage[{mine}])", f"phase[{r}] = FINISHED",
        )  # fmt: skip
        drop = [f"refs[{mine}] = refs[{mine}] - 1", f"{mine} = NONE", f"phase[{r}] = IDLE"]
        step(f"phase[{r}] == FINISHED", *drop)
        step(waiting, f"stage[{mine}] = (stage[{mine}] == FILLING -> FREE : stage[{mine}])", *drop)
    for b in each_block:
        step(f"stage[{b}] == CACHED && storing[{b}] == 0", f"storing[{b}] = 1")
        step(f"storing[{b}] == 1", f"storing[{b}] = 0")
        oldest = "".join(f" && (!IDLE_BLOCK({c}) || pos{c} > pos{b})" for c in each_block if c != b)
        step(f"IDLE_BLOCK({b}){oldest}", f"stage[{b}] = EVICTING")
        step(f"stage[{b}] == EVICTING", f"stage[{b}] = FREE")
    return "\n".join([*lines, "  od", "}", ""])


def _invariants(blocks: int, requests: int) -> list[str]:
    each_block, each_request = range(blocks), range(requests)
    out = []
    for b in each_block:
        holders = " + ".join(f"(held[{r}] == {b})" for r in each_request)
        out.append(f"refs[{b}] == {holders}")
        gone = f"(stage[{b}] == FREE || stage[{b}] == EVICTING)"
        out.append(f"(!{gone} || (refs[{b}] == 0 && storing[{b}] == 0))")
        out.append(f"(stage[{b}] != FILLING || refs[{b}] == 1)")
        out += [f"pos{b} != pos{c}" for c in each_block if c < b]
    return [*out, *(f"((phase[{r}] == IDLE) == (held[{r}] == NONE))" for r in each_request)]
