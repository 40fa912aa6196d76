"""Writes a disagreement as a test: one file with the machine, the engine that is asked, and what is right."""

from __future__ import annotations

import re

from comparing import Case, Difference
from recipes import Recipe, machine_text

_MAKE = {
    "interpret": "Interpret()",
    "explore": "Explore()",
    "explore-chunks-of-7": "Explore(chunk=7)",
    "explore-chunks-of-64": "Explore(chunk=64)",
    "explore-first": "Explore()",
    "native": "Native()",
    "native-2-threads": "Native(threads=2)",
    "native-all-lanes": "Native()",
    "native-all-lanes-2-threads": "Native(threads=2)",
    "native-first": "Native()",
    "native-symmetry": "Native(symmetry=True)",
    "liveness": "Liveness()",
    "liveness-in-c": "Liveness()",
    "bmc": "BMC(7)",
    "kinduction": "KInduction(4)",
    "kinduction-exercised": "Exercised(KInduction(4))",
    "spacer": "Spacer(seconds=10.0, depth=3)",
    "smt": "Unbounded()",
}
_KERNELS = {
    "gpu-kernels": "HostDevice(1)",
    "gpu-kernels-2-threads": "HostDevice(2)",
    "gpu-kernels-symmetry": "HostDevice(1)",
}
_HOMES = {
    "Explore": "kvfence.checker.engines.explicit.numpy_search",
    "Interpret": "kvfence.checker.engines.explicit.interpret",
    "Liveness": "kvfence.checker.engines.liveness.liveness",
    "Native": "kvfence.checker.engines.native.native",
    "Exercised": "kvfence.checker.engines.smt.exercised",
    "BMC": "kvfence.checker.engines.smt.bmc",
    "KInduction": "kvfence.checker.engines.smt.kinduction",
    "Spacer": "kvfence.checker.engines.smt.spacer",
    "Unbounded": "kvfence.checker.engines.smt.unbounded",
}

_IMPORTS = """from kvfence.checker.engines.base import Path
from kvfence.checker.engines.explicit.interpret import Interpreter
"""
_GPU_IMPORTS = """from kvfence.checker.engines.gpu import Gpu
from kvfence.checker.engines.gpu.device.host import HostDevice
"""
_FOLLOW = '''
def follow(m: Machine, path: Path) -> None:
    """Take a path step by step."""
    run = Interpreter(m)
    state = run.initial()
    assert run.view(state) == path.initial
    for step in path.steps:
        state, _ = run.step(state, run.find(step.action, **step.args))
        assert run.view(state) == step.after
'''


def test_text(seed: int, case: int, question: str, difference: Difference, r: Recipe) -> str:
    """The file. Asking the same of other engines says which of them agree with what is right."""
    what = " ".join(difference.text.split())[:300].replace('"""', "'''").replace("\\", "\\\\")
    head = (
        f'"""Seed {seed}, case {case}: engine {question} differed from judging the machine directly.\n\n'
        f"{difference.kind}: {what}\n\n"
        f'Found by ``make fuzz SEED={seed} CASE={case}`` and made smaller.\n"""\n\n'
    )
    imports, body = _test(question, r)
    first, _, rest = machine_text(r).partition("\n\n")
    return f"{head}{imports}{first}\n{rest}\n{body}"


def _test(question: str, r: Recipe) -> tuple[str, str]:
    if question in ("build", "evaluate", "native-resumed", "native-little-memory") or (
        question.startswith("gpu") and question not in _KERNELS
    ):
        return "", "\ndef test_the_machine_can_be_built() -> None:\n    assert build().finished()\n"
    a = Case(r).answer
    if question in _KERNELS:
        symmetric = ", symmetry=True" if question.endswith("symmetry") else ""
        engine = f"Gpu(device=lambda: {_KERNELS[question]}{symmetric})"
        imports = _GPU_IMPORTS
    else:
        engine = _MAKE[question]
        names = re.findall(r"[A-Z]\w+", engine)
        imports = "".join(f"from {_HOMES[n]} import {n}\n" for n in names)
    bounds = f", bounds={r.limits!r}" if r.bounds else ""
    lines = [_FOLLOW, "", "def test_the_engine_is_right() -> None:", "    m = build()"]
    until = ', until="first"' if question.endswith("-first") else ""
    lines += [
        f"    r = {engine}.run(m{bounds}{until})",
        "    wrong = [p for p in (*(f.path for f in r.findings.values()), r.deadlock) if p is not None]",
        "    for path in (*wrong, *r.witnesses.values()):",
        "        follow(m, path)",
    ]
    violated = a.all_violated
    shown = "    found = {p.name: len(p) for p in wrong}"
    if question.startswith("liveness"):
        from liveness_judge import Judge

        judge = Judge(Case(r).direct)
        broken = {q.name: judge.broken(q)[0] for q in r.liveness}
        lines.append(f"    assert {{p.name for p in wrong}} == {{n for n, b in {broken!r}.items() if b}}")
    elif question in ("bmc", "kinduction", "kinduction-exercised", "spacer", "smt"):
        lines += [
            shown,
            f"    right = {violated!r}",
            "    assert found.items() <= right.items()",
            '    assert not any(f.name in right and f.verdict == "holds" for f in r.findings.values())',
        ]
        if question == "bmc":
            lines.append("    assert {n for n, k in right.items() if k < r.depth} <= set(found)")
    elif question.endswith("-first"):
        lines += [
            shown,
            f"    assert found.items() <= {violated!r}.items()",
            f"    assert bool(found) == {bool(violated)}",
        ]
    else:
        if not question.endswith("symmetry"):
            counted = a.states, a.transitions, a.depth
            lines.append(f"    assert (r.states, r.transitions, r.depth) == {counted}")
            lines.append(f"    assert r.coverage == {a.coverage!r}")
        lines += [shown, f"    assert found == {violated!r}", f"    assert r.goals == {a.goals!r}"]
        lines.append(f"    assert (r.stopped is not None) == {a.outside}")
    return _IMPORTS + imports, "\n".join(lines) + "\n"
