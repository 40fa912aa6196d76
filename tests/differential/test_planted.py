"""Each of these faults, planted in an engine, is found by the differential tester within two minutes."""

import importlib
from pathlib import Path

import pytest
from campaign import campaign
from judging import Wanted
from planting import Plant, plant

SECONDS = 120.0
E = "checker.engines"
L = "spec.language"

PLANTS = [
    # what all engines read
    Plant(
        "a guard is dropped",
        f"{L}.ground:Grounded._instantiate",
        "for g in action.guards)",
        "for g in action.guards[:1])",
    ),
    Plant(
        "a range is not asked at its end",
        f"{L}.ground:Grounded._ranges",
        "hi > cell.hi:",
        "hi > cell.hi + 1:",
    ),
    Plant("facts go too far", f"{L}.nodes:learn", "gap = 1 if", "gap = 2 if"),
    Plant(
        "a branch is turned",
        f"{L}.nodes:Graph.ite",
        "return self.ite(c.args[0], b, a)",
        "return self.ite(c.args[0], a, b)",
    ),
    Plant(
        "an end of a sum is lost",
        f"{L}.nodes:Graph.subtract",
        "(a.lo - b.hi, a.hi - b.lo)",
        "(a.lo - b.lo, a.hi - b.lo)",
    ),
    Plant(
        "the last element is not quantified",
        f"{L}.ground:Grounded._extended",
        "range(lo, hi + 1)",
        "range(lo, max(hi, lo + 1))",
    ),
    Plant(
        "an assignment forgets the one before",
        f"{L}.state:State._write",
        "self._now.get(function, apply(function, function.formals))",
        "apply(function, function.formals)",
    ),
    Plant(
        "substitution misses the condition",
        f"{L}.expr:If",
        "if a is FALSE and b is TRUE:\n        return Not(c)",
        "if a is FALSE and b is TRUE:\n        return c",
    ),
    # one engine each
    Plant(
        "the interpreter forgets a check",
        f"{E}.explicit.python_source:_failing",
        "(*i.checks, *i.ranges)",
        "(*i.checks[1:], *i.ranges)",
    ),
    Plant(
        "the interpreter finds no deadlock",
        f"{E}.explicit.interpret:_Search._expand",
        "if not found and",
        "if found and",
    ),
    Plant(
        "a bit of packing is lost",
        f"{E}.explicit.pack:Packing.__init__",
        "bits = (hi - lo).bit_length()",
        "bits = max(1, (hi - lo).bit_length() - (hi - lo > 6))",
    ),
    Plant(
        "a column is too narrow",
        f"{E}.explicit.columns:column_type",
        "hi < 1 << (bits - 1)",
        "hi <= 1 << (bits - 1)",
    ),
    Plant(
        "numpy loses a chunk's last state",
        f"{E}.explicit.numpy_search:_Search._expand",
        "words, log, depth = self.seen.words[:, a:b]",
        "words, log, depth = self.seen.words[:, a : b - (b - a == self.chunk)]",
    ),
    Plant(
        "the first state is not judged",
        f"{E}.explicit.numpy_search:_Search._look",
        "while self.judged < self.seen.count:",
        "self.judged = max(self.judged, 1)\n    while self.judged < self.seen.count:",
    ),
    Plant(
        "numpy does not know states again",
        f"{E}.explicit.state_set:SetOfRows._enter",
        "(found & ~_LOW) == tag",
        "(found & ~_LOW) < tag",
    ),
    Plant(
        "numpy gives up at a full slot",
        f"{E}.explicit.state_set:SetOfWords._enter",
        "keys, at = keys.take(other), at.take(other)",
        "keys, at = keys[:0], at[:0]",
    ),
    Plant(
        "a path steps to the wrong instance",
        f"{E}.explicit.numpy_search:_Back._match",
        "bisect_right(places, k) - 1",
        "bisect_right(places, k) - 1 - (k == len(places) - 1)",
    ),
    Plant(
        "C compares with a neighbour",
        f"{E}.native.c_nodes:Scope._literal",
        "(value.value - s.lo) << s.offset",
        "(value.value - s.lo - (s.lo < 0)) << s.offset",
    ),
    Plant(
        "C keeps a step out of range",
        f"{E}.native.c_source:NativeSource._instance",
        "keep.append(scope.name(check.holds))",
        "scope.name(check.holds)",
    ),
    Plant(
        "C adds instead of setting",
        f"{E}.explicit.updates:constant_part",
        "plus[s.word] += by << s.offset",
        "plus[s.word] += abs(by) << s.offset",
    ),
    Plant(
        "a piece loses its last state",
        "search.c",
        "    *from = b->data + s->at_state * WORDS;\n    s->at_state += n;",
        "    *from = b->data + s->at_state * WORDS;\n    s->at_state += n;\n    if (n == PIECE) n--;",
    ),
    Plant(
        "C compares the first word only",
        "table.c",
        "    if (entry[k] != state[k]) return 0;\n  return 1;",
        "    if (entry[k] != state[k]) return 1;\n  return 1;",
    ),
    Plant(
        "a grown table loses an entry",
        "table.c",
        "for (u64 at = m->first; at < m->end; at++)",
        "for (u64 at = m->first + 1; at < m->end; at++)",
    ),
    Plant(
        "a terminal state is a deadlock in C", "search.c", "stuck & NOT(terminal(w))", "stuck & terminal(w)"
    ),
    Plant(
        "C judges one state too few",
        "search.c",
        "i < b->count; i += LANES) {\n    const u64 n = b->count - i",
        "i + LANES < b->count; i += LANES) {\n    const u64 n = b->count - i",
    ),
    Plant(
        "elements are renamed, values are not",
        f"{E}.explicit.symmetry:_exchange",
        "if field.value is sort:",
        "if field.value is sort and not field.domain:",
    ),
    Plant(
        "a renaming is left out",
        f"{E}.explicit.symmetry:plain_changes",
        "for k in range(math.factorial(n - 1)):",
        "for k in range(max(1, math.factorial(n - 1) - 1)):",
    ),
    Plant(
        "renaming ignores who has a number",
        f"{E}.explicit.symmetry:numbered_sorts",
        'if node.op == "index" and',
        'if node.op == "limit" and',
    ),
    Plant(
        "a checkpoint forgets what was taken",
        f"{E}.native.exploration:Exploration.open",
        "list(saved.taken)",
        "[0] * len(saved.taken)",
    ),
    Plant(
        "weak fairness is taken for none",
        f"{E}.liveness.liveness:_Search._fair_component",
        "unfair |= (enabled == size) & ~taken",
        "pass",
    ),
    Plant(
        "strong fairness is taken for weak",
        f"{E}.liveness.liveness:_Search._fair_component",
        "owed = (enabled > 0) & ~taken",
        "owed = (enabled == size) & ~taken",
    ),
    Plant(
        "a run may stop where it must not",
        f"{E}.liveness.liveness:_Search._may_stop",
        "[*self.weak, *self.strong]",
        "[*self.strong]",
    ),
    Plant(
        "bmc stops a step early",
        f"{E}.smt.bmc:Search._deepen",
        "self.complete, self.depth = True, k - 1",
        "self.complete, self.depth = True, k",
    ),
    Plant(
        "bmc skips the steps after a state",
        f"{E}.smt.bmc:Search._deepen",
        "for extra in (0, 1):",
        "for extra in (0, 1)[: 1 + (k > 0)]:",
    ),
    Plant(
        "numbers are a bit too narrow for z3",
        f"{E}.smt.finite:_width",
        "return most.bit_length() + 1",
        "return most.bit_length()",
    ),
    Plant(
        "k-induction assumes what it is to show",
        f"{E}.smt.kinduction:_Step.holds",
        "runs.conditions(length).items()",
        "runs.conditions(length - 1).items()",
    ),
    Plant(
        "a quantifier is turned for any size",
        f"{E}.smt.translate:Translator._over",
        "return z3.Exists(consts, z3.And(*inside, body) if inside else body)",
        "return z3.ForAll(consts, z3.Implies(z3.And(*inside), body) if inside else body)",
    ),
    Plant(
        "a start is taken as proved",
        f"{E}.smt.conditions:start_question",
        "arbitrary(initially(c.expr))",
        "arbitrary(make('or', c.expr.type, (initially(c.expr), Not(initially(c.expr)))))",
    ),
    Plant(
        "a condition after a step is that before",
        f"{E}.smt.conditions:after",
        "now = action.updates.get(f)",
        "now = action.updates.get(f) if not at else None",
    ),
    Plant(
        "the evaluator is off by one",
        f"{L}.evaluate:Evaluator.value",
        '"lt": int(a < b)',
        '"lt": int(a <= b)',
    ),
    Plant(
        "a key of the GPU overlaps",
        f"{E}.gpu.device.keys:Keys._lay_out",
        "size = hi - lo + 1",
        "size = max(1, hi - lo)",
    ),
    Plant(
        "the GPU drops what waits in a queue",
        "search.cuh",
        "  drain(t, n, true);\n",
        "  drain(t, n, n % 2 == 0);\n",
    ),
    Plant(
        "a count changes by what is named though more has changed",
        f"{E}.smt.counters:flips",
        "Implies(only, equal(after, before + change))",
        "equal(after, before + change)",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("p", PLANTS, ids=lambda p: p.name)
def test_a_planted_fault_is_found(p: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(p, monkeypatch)
    tally = campaign(Wanted(1), SECONDS, workers=2, shrink_seconds=0, folder=tmp_path)
    assert tally.findings, tally.text()


@pytest.mark.parametrize("p", PLANTS, ids=lambda p: p.name)
def test_the_source_still_has_the_place_for_a_fault(p: Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(p, patch)
    importlib.invalidate_caches()
