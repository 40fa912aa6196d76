"""Each of these faults, planted in an engine, is found by the differential tester within two minutes."""

import importlib
from pathlib import Path

import pytest
from campaign import campaign
from judging import Wanted
from planting import Plant, plant

SECONDS = 120.0

_PLANTS = [
    # what all engines read
    (
        "a guard is dropped",
        "spec.language.ground:Grounded._instantiate",
        "for g in action.guards)",
        "for g in action.guards[:1])",
    ),
    (
        "a range is not asked at its end",
        "spec.language.ground:Grounded._ranges",
        "hi > cell.hi:",
        "hi > cell.hi + 1:",
    ),
    ("facts go too far", "spec.language.nodes:learn_bounds", "gap = 1 if", "gap = 2 if"),
    (
        "a branch is turned",
        "spec.language.nodes:Graph.ite",
        "return self.ite(c.args[0], b, a)",
        "return self.ite(c.args[0], a, b)",
    ),
    (
        "an end of a sum is lost",
        "spec.language.nodes:Graph.subtract",
        "(a.lo - b.hi, a.hi - b.lo)",
        "(a.lo - b.lo, a.hi - b.lo)",
    ),
    (
        "the last element is not quantified",
        "spec.language.ground:Grounded._extended",
        "range(lo, hi + 1)",
        "range(lo, max(hi, lo + 1))",
    ),
    (
        "an assignment forgets the one before",
        "spec.language.state:State._write",
        "self._now.get(function, ex.apply(function, function.formals))",
        "ex.apply(function, function.formals)",
    ),
    (
        "substitution misses the condition",
        "spec.language.expr:If",
        "if a is FALSE and b is TRUE:\n        return Not(c)",
        "if a is FALSE and b is TRUE:\n        return c",
    ),
    # one engine each
    (
        "the interpreter forgets a check",
        "checker.engines.explicit.python_source:_failing",
        "(*i.checks, *i.ranges)",
        "(*i.checks[1:], *i.ranges)",
    ),
    (
        "the interpreter finds no deadlock",
        "checker.engines.explicit.interpret:_Search._expand",
        "if not found and",
        "if found and",
    ),
    (
        "a bit of packing is lost",
        "checker.engines.explicit.pack:Packing.__init__",
        "bits = (hi - lo).bit_length()",
        "bits = max(1, (hi - lo).bit_length() - (hi - lo > 6))",
    ),
    (
        "a column is too narrow",
        "checker.engines.explicit.columns:column_type",
        "hi < 1 << (bits - 1)",
        "hi <= 1 << (bits - 1)",
    ),
    (
        "numpy loses a chunk's last state",
        "checker.engines.explicit.numpy_search:_Search._expand",
        "words, log, depth = self.seen.words[:, a:b]",
        "words, log, depth = self.seen.words[:, a : b - (b - a == self.chunk)]",
    ),
    (
        "the first state is not judged",
        "checker.engines.explicit.numpy_search:_Search._look",
        "while self.judged < self.seen.count:",
        "self.judged = max(self.judged, 1)\n    while self.judged < self.seen.count:",
    ),
    (
        "numpy does not know states again",
        "checker.engines.explicit.state_set:SetOfRows._enter",
        "(found & ~_LOW) == tag",
        "(found & ~_LOW) < tag",
    ),
    (
        "numpy gives up at a full slot",
        "checker.engines.explicit.state_set:SetOfWords._enter",
        "keys, at = keys.take(other), at.take(other)",
        "keys, at = keys[:0], at[:0]",
    ),
    (
        "a path steps to the wrong instance",
        "checker.engines.explicit.numpy_search:_Back._match",
        "bisect_right(places, k) - 1",
        "bisect_right(places, k) - 1 - (k == len(places) - 1)",
    ),
    (
        "C compares with a neighbour",
        "checker.engines.native.c_nodes:Scope._literal",
        "(value.value - s.lo) << s.offset",
        "(value.value - s.lo - (s.lo < 0)) << s.offset",
    ),
    (
        "C keeps a step out of range",
        "checker.engines.native.c_source:NativeSource._instance",
        "keep.append(scope.name(check.holds))",
        "scope.name(check.holds)",
    ),
    (
        "C adds instead of setting",
        "checker.engines.explicit.updates:constant_part",
        "plus[s.word] += by << s.offset",
        "plus[s.word] += abs(by) << s.offset",
    ),
    (
        "a piece loses its last state",
        "search.c",
        "    *from = b->data + s->at_state * WORDS;\n    s->at_state += n;",
        "    *from = b->data + s->at_state * WORDS;\n    s->at_state += n;\n    if (n == PIECE) n--;",
    ),
    (
        "C compares the first word only",
        "table.c",
        "    if (entry[k] != state[k]) return 0;\n  return 1;",
        "    if (entry[k] != state[k]) return 1;\n  return 1;",
    ),
    (
        "a grown table loses an entry",
        "table.c",
        "for (u64 at = m->first; at < m->end; at++)",
        "for (u64 at = m->first + 1; at < m->end; at++)",
    ),
    ("a terminal state is a deadlock in C", "search.c", "stuck & NOT(terminal(w))", "stuck & terminal(w)"),
    (
        "C judges one state too few",
        "search.c",
        "i < b->count; i += LANES) {\n    const u64 n = b->count - i",
        "i + LANES < b->count; i += LANES) {\n    const u64 n = b->count - i",
    ),
    (
        "elements are renamed, values are not",
        "checker.engines.explicit.symmetry:_exchange",
        "if field.value is sort:",
        "if field.value is sort and not field.domain:",
    ),
    (
        "a renaming is left out",
        "checker.engines.explicit.symmetry:plain_changes",
        "for k in range(math.factorial(n - 1)):",
        "for k in range(max(1, math.factorial(n - 1) - 1)):",
    ),
    (
        "renaming ignores who has a number",
        "checker.engines.explicit.symmetry:numbered_sorts",
        'if node.op == "index" and',
        'if node.op == "limit" and',
    ),
    (
        "a checkpoint forgets what was taken",
        "checker.engines.native.exploration:Exploration.open",
        "list(saved.taken)",
        "[0] * len(saved.taken)",
    ),
    (
        "weak fairness is taken for none",
        "checker.engines.liveness.liveness:_Search._fair_component",
        "unfair |= (enabled == size) & ~taken",
        "pass",
    ),
    (
        "strong fairness is taken for weak",
        "checker.engines.liveness.liveness:_Search._fair_component",
        "owed = (enabled > 0) & ~taken",
        "owed = (enabled == size) & ~taken",
    ),
    (
        "a run may stop where it must not",
        "checker.engines.liveness.liveness:_Search._may_stop",
        "[*self.weak, *self.strong]",
        "[*self.strong]",
    ),
    (
        "bmc stops a step early",
        "checker.engines.smt.bmc:Search._deepen",
        "self.complete, self.depth = True, k - 1",
        "self.complete, self.depth = True, k",
    ),
    (
        "bmc skips the steps after a state",
        "checker.engines.smt.bmc:Search._deepen",
        "for extra in (0, 1):",
        "for extra in (0, 1)[: 1 + (k > 0)]:",
    ),
    (
        "numbers are a bit too narrow for z3",
        "checker.engines.smt.finite:_width",
        "return most.bit_length() + 1",
        "return most.bit_length()",
    ),
    (
        "k-induction assumes what it is to show",
        "checker.engines.smt.kinduction:_Step.holds",
        "runs.conditions(length).items()",
        "runs.conditions(length - 1).items()",
    ),
    (
        "a quantifier is turned for any size",
        "checker.engines.smt.translate:Translator._over",
        "return z3.Exists(consts, z3.And(*inside, body) if inside else body)",
        "return z3.ForAll(consts, z3.Implies(z3.And(*inside), body) if inside else body)",
    ),
    (
        "a start is taken as proved",
        "checker.engines.smt.conditions:start_question",
        "arbitrary(initially(c.expr))",
        "arbitrary(make('or', c.expr.type, (initially(c.expr), Not(initially(c.expr)))))",
    ),
    (
        "a condition after a step is that before",
        "checker.engines.smt.conditions:after",
        "now = action.updates.get(f)",
        "now = action.updates.get(f) if not at else None",
    ),
    (
        "the evaluator is off by one",
        "spec.language.evaluate:Evaluator.value",
        '"lt": int(a < b)',
        '"lt": int(a <= b)',
    ),
    (
        "a key of the GPU overlaps",
        "checker.engines.gpu.device.keys:Keys._lay_out",
        "size = hi - lo + 1",
        "size = max(1, hi - lo)",
    ),
    (
        "the GPU drops what waits in a queue",
        "search.cuh",
        "  drain(t, n, true);\n",
        "  drain(t, n, n % 2 == 0);\n",
    ),
    (
        "a count changes by what is named though more has changed",
        "checker.engines.smt.counters:flips",
        "Implies(only, equal(after, before + change))",
        "equal(after, before + change)",
    ),
]
PLANTS = [Plant(*row) for row in _PLANTS]


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
