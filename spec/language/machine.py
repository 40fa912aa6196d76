"""Machines: state over sorts, guarded actions, invariants and goals, each traced once when declared."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from kvfence.spec.language.errors import close, fail, here, place
from kvfence.spec.language.expr import Expr, lift, lift_bool, show, variable
from kvfence.spec.language.sizes import KnownSizes, Sizes
from kvfence.spec.language.state import RESERVED, Check, Guard, LateIndex, State, check_id
from kvfence.spec.language.types import Bool, Int, Sort, Type, kind, same_kind
from kvfence.spec.language.view import View

Fair = Literal["weak", "strong"] | None
Init = Expr | bool | int | Callable[..., Expr | bool | int]
DEADLOCK = "deadlock"  # the name of the condition that every machine has: that no state is stuck
LEMMA = "LEMMA"  # stands where an invariant has its id of the catalogue
_IS = dis.opmap["IS_OP"]
_ANSWERED = set[types.CodeType]()  # code that asks no symbolic value which object it is
F = TypeVar("F", bound=Callable[..., Any])


class Function:
    """A function of the state from index types to a value type.

    ``formals`` are the index variables that next-state expressions and ``init`` are written over.

    >>> machine = Machine("doc")
    >>> machine.function("ref", machine.sort("Block"), value=Int(0, 4), init=0)
    ref(Block): Int(0, 4)
    """

    def __init__(self, name: str, domain: tuple[Type, ...], value: Type, init: Init, where: str) -> None:
        self.name, self.domain, self.value, self.where = name, domain, value, where
        self.formals = tuple(variable("bound", t, f"i{k}") for k, t in enumerate(domain))
        given = init(*self.formals) if callable(init) else init
        self.init = lift(given)
        if not same_kind(self.init.type, value):
            raise fail(f"{name} holds {kind(value)}, and its init is of type {kind(self.init.type)}")
        if any(all(v is not f for f in self.formals) for v in self.init.free):
            raise fail(f"the init of {name} uses a variable that is not one of its indices")

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(t.name for t in self.domain)}): {self.value.name}"


class Action:
    """A guarded step with parameters.

    ``updates`` gives, for each function assigned, its next value over ``Function.formals`` and ``params``,
    read in the state before the step.
    """

    def __init__(self, name: str, params: tuple[Expr, ...], doc: str, fair: Fair, where: str) -> None:
        self.name, self.params, self.doc, self.fair, self.where = name, params, doc, fair, where
        self.guards: tuple[Guard, ...] = ()
        self.updates: dict[Function, Expr] = {}
        self.checks: tuple[Check, ...] = ()
        self.late: tuple[LateIndex, ...] = ()
        self.event: Callable[..., Sequence[object]] | None = None

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{p.value}: {p.type.name}' for p in self.params)})"


class Property:
    """A condition on states: an invariant (``id`` as in the catalogue), a lemma (LEMMA) or a goal (no id)."""

    def __init__(
        self, id_: str, name: str, doc: str, expr: Expr, late: tuple[LateIndex, ...], *, where: str
    ) -> None:
        self.id, self.name, self.doc, self.expr, self.late, self.where = id_, name, doc, expr, late, where

    def __repr__(self) -> str:
        return f"{self.id} {self.name}".strip()


class LeadsTo:
    """A liveness property: whenever ``when`` holds, ``then`` holds at that time or later.

    ``when`` is None for the beginning of a run. The property is stated for every choice of ``params``.
    """

    def __init__(
        self, id_: str, name: str, doc: str, params: tuple[Expr, ...], when: Expr | None, then: Expr
    ) -> None:
        self.id, self.name, self.doc, self.params = id_, name, doc, params
        self.when, self.then = when, then
        self.late: tuple[LateIndex, ...] = ()

    def __repr__(self) -> str:
        return f"{self.id} {self.name}"


class Acceptance:
    """What mutation testing may find, and why: a change that nothing notices, or an idle condition."""

    def __init__(self, name: str, why: str, where: str) -> None:
        self.name, self.why, self.where = name, why, where


class Machine:
    """A transition system over sorts of any size.

    ``faults`` are design switches: a machine file asks ``m.faulty("name")`` while it is built. SpecError,
    raised when an engine first uses the machine, for a fault that was never asked about.

    >>> from kvfence.language import Int
    >>> machine = Machine("blocks")
    >>> _ = machine.function("free", value=Int(0, 2), init=2)
    >>> @machine.action()
    ... def take(s):
    ...     s.require(s.free > 0)
    ...     s.free = s.free - 1
    >>> @machine.invariant("COUNT")
    ... def one_is_left(s):
    ...     return s.free >= 1
    >>> machine.assert_discovers("COUNT", ["take()", "take()"])
    """

    def __init__(self, name: str, doc: str | None = None, faults: frozenset[str] = frozenset()) -> None:
        self.name, self.doc, self.faults, self.where = (
            name,
            inspect.cleandoc(doc or ""),
            frozenset(faults),
            here(),
        )
        self.sorts: dict[str, Sort] = {}
        self.functions: dict[str, Function] = {}
        self.actions: dict[str, Action] = {}
        self.invariants: dict[str, Property] = {}
        self.lemmas: dict[str, Property] = {}
        self.goals: dict[str, Property] = {}
        self.liveness: dict[str, LeadsTo] = {}
        self.liveness_at: dict[str, int] = {}
        self.declared: dict[str, str] = {}
        self.terminal_states: Property | None = None
        self.header_of: Callable[[Sizes], object] | None = None
        self.idle_events: Callable[[View], Sequence[object]] | None = None
        self.ghosts: dict[str, str] = {}
        self.accepted: list[Acceptance] = []
        self.accepted_idle: list[Acceptance] = []
        self._consulted: set[str] = set()

    def faulty(self, fault: str) -> bool:
        """Whether the design has this fault switched on."""
        self._consulted.add(fault)
        return fault in self.faults

    def finished(self) -> Machine:
        """The machine, once its faults are known to be ones that it consults; engines call this."""
        for fault in sorted(self.faults - self._consulted):
            raise fail(
                f"machine {self.name} never consults the fault {fault!r}; {close(fault, self._consulted)}",
                self.where,
            )
        if not self.actions:
            raise fail(f"machine {self.name} has no action; declare one with @m.action()", self.where)
        return self

    def bounds(self) -> Iterator[tuple[str, Callable[[Sizes], int]]]:
        """The bounds of Ints that are functions of the sort sizes, each with what it is a bound of."""
        for f in self.functions.values():
            for t in (*f.domain, f.value):
                yield from _bounds_of(t, f.name)
        quantified: list[tuple[str, Expr]] = []
        for a in self.actions.values():
            for v in a.params:
                yield from _bounds_of(v.type, f"parameter {v.value} of {a.name}")
            read = (*(g.expr for g in a.guards), *a.updates.values(), *(c.expr for c in a.checks))
            quantified += [(a.name, e) for e in read]
        stated = (*self.invariants.values(), *self.lemmas.values(), *self.goals.values())
        quantified += [(p.name, p.expr) for p in stated]
        visited: set[int] = set()
        while quantified:
            name, e = quantified.pop()
            if e.uid in visited:
                continue
            visited.add(e.uid)
            quantified += [(name, a) for a in e.args]
            if e.op == "limit" and callable(e.value):
                yield f"a limit in {name}", e.value
            for v in e.value if isinstance(e.value, tuple) else ():
                yield from _bounds_of(v.type, f"{v.value} in {name}")

    def sort(self, name: str, default: int = 2) -> Sort:
        """Declare a sort, with the size it has when a run does not say."""
        self._new(name, self.sorts, "sort")
        if not isinstance(default, int) or isinstance(default, bool) or default < 1:
            raise fail(f"sort {name} has default size {default!r}; a sort has at least one element")
        self.sorts[name] = Sort(name, default, here())
        return self.sorts[name]

    def function(self, name: str, *domain: Type, value: Type, init: Init) -> Function:
        """Declare a function of the state; without a domain it is a plain variable.

        ``init`` is a constant, or a function of the indices that gives a constant expression.
        """
        self._new(name, self.functions, "field")
        if not name.isidentifier() or name in RESERVED or name.startswith("_"):
            raise fail(f"{name!r} cannot be the name of a field; pick another identifier")
        for t in (*domain, value):
            self._known(t, name)
        for t in domain:
            if isinstance(t, Int) and not t.bounded:
                raise fail(f"{name} cannot be indexed by an unbounded Int; write Int(lo, hi)")
        self.functions[name] = Function(name, domain, value, init, here())
        return self.functions[name]

    def relation(self, name: str, *domain: Type, init: Init = False) -> Function:
        """Declare a function into Bool."""
        return self.function(name, *domain, value=Bool, init=init)

    def action(
        self, *, fair: Fair = None, event: Callable[..., Sequence[object]] | None = None, **params: Type
    ) -> Callable[[F], F]:
        """Declare an action: the decorated function takes the state and the parameters, by name.

        ``event`` gives the observable events of a step: a function of the views before and after and of any
        of the parameters, by name.
        """
        if fair not in (None, "weak", "strong"):
            raise fail(f'fair is "weak", "strong" or None, not {fair!r}')

        def declare(body: F) -> F:
            name = body.__name__
            self._new(name, self.actions, "action")
            _same_names(name, body, params)
            variables = self._variables(name, params)
            action = Action(name, variables, inspect.cleandoc(body.__doc__ or ""), fair, here())
            action.event = _by_name(name, event, tuple(params)) if event else None
            state = State(self, name, name, variables)
            _no_identity(body)
            if body(state, **dict(zip(params, variables, strict=True))) is not None:
                raise fail(
                    f"action {name} returns something, which would be lost; say when it can be taken by "
                    "s.require(…), and assign what it changes"
                )
            action.guards, action.checks = tuple(state._guards), tuple(state._checks)
            action.updates, action.late = dict(state._now), tuple(state._late)
            self.actions[name] = action
            return body

        return declare

    def declare(self, id_: str, sentence: str) -> None:
        """Say what an id of one's own stands for, in a sentence: reports print it where ``id_`` is stated.

        Ids of the catalogue are known. For an id of one's own that is like none of these, the docstring of an
        invariant under it is enough, if it is a sentence. SpecError for an id declared twice.
        """
        if not isinstance(id_, str) or not id_ or not isinstance(sentence, str) or not sentence.strip():
            raise fail(
                'declare takes an id and a sentence: m.declare("LEASE", "A lease outlives its readers.")'
            )
        self._new(id_, self.declared, "id")
        self.declared[id_] = " ".join(sentence.split())

    def invariant(self, id_: str) -> Callable[[F], F]:
        """Declare an invariant under an id of the catalogue or of one's own (see ``declare``).

        The function's name is its own name.
        """
        if not isinstance(id_, str) or not id_:
            raise fail('an invariant needs the id of the catalogue: @m.invariant("PIN")')

        check_id(id_)

        def declare(body: F) -> F:
            self._condition(body.__name__, "invariant")
            self.invariants[body.__name__] = self._property(id_, body.__name__, body)
            return body

        return declare

    def lemma(self, body: F) -> F:
        """Declare what proofs may assume besides the invariants, and must prove with them.

        The docstring says why it holds. Lemmas are about the sound design: a machine with faults need not
        keep them, and engines check them only where no fault is switched on.
        """
        self._condition(body.__name__, "lemma")
        if not (body.__doc__ or "").strip():
            raise fail(f"lemma {body.__name__} does not say why it holds; give it a docstring of one line")
        self.lemmas[body.__name__] = self._property(LEMMA, body.__name__, body)
        return body

    def goal(self, body: F) -> F:
        """Declare a condition that some reachable state must meet: the guard against vacuous invariants."""
        self._condition(body.__name__, "goal")
        self.goals[body.__name__] = self._property("", body.__name__, body)
        return body

    def leads_to(
        self,
        name: str,
        when: Callable[..., Expr | bool] | None,
        then: Callable[..., Expr | bool],
        *,
        id_: str = "PROGRESS",
        doc: str = "",
        **params: Type,
    ) -> None:
        """State that ``when`` is always followed by ``then`` (at once counts), under the fairness marked.

        Both are functions of the state and of the parameters, by position, as in
        ``m.leads_to("done", lambda s, o: s.queued[o], lambda s, o: s.idle[o], o=Operation)``; the property is
        stated for each choice of them. A run may stop anywhere, unless an instance of an action with
        ``fair="weak"`` stays enabled there; one with ``fair="strong"`` must be taken if it is enabled again
        and again.
        """
        self._condition(name, "promise")
        check_id(id_)
        variables = self._variables(name, params)
        state = State(self, name, params=variables)
        for condition in (when, then):
            _no_identity(condition)
        first = None if when is None else state._closed(lift_bool(when(state, *variables), name))
        last = state._closed(lift_bool(then(state, *variables), name))
        self.liveness[name] = LeadsTo(id_, name, doc, variables, first, last)
        self.liveness[name].late = tuple(state._late)

    def eventually(
        self,
        name: str,
        then: Callable[..., Expr | bool],
        *,
        id_: str = "PROGRESS",
        doc: str = "",
        **params: Type,
    ) -> None:
        """State that every run meets ``then`` at some time; see ``leads_to``."""
        self.leads_to(name, None, then, id_=id_, doc=doc, **params)

    def liveness_sizes(self, **sizes: int) -> None:
        """Say at which sort sizes liveness properties are judged when those of a run are larger.

        The graph that they are judged on has to fit in memory. SpecError for a sort that does not exist.
        """
        for sort, size in sizes.items():
            if sort not in self.sorts:
                raise fail(f"machine {self.name} has no sort {sort}; {close(sort, self.sorts)}")
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise fail(f"size of {sort} is {size!r}; a sort has at least one element")
        self.liveness_at.update(sizes)

    def promise_sizes(self, **sizes: int) -> None:
        """Former name of :meth:`liveness_sizes`, kept for machine files of users."""
        self.liveness_sizes(**sizes)

    def terminal(self, body: Callable[[State], Expr]) -> None:
        """Say which states may have no successor; any other state without one is a deadlock."""
        if self.terminal_states is not None:
            raise fail("terminal is declared twice; join the conditions with Or")
        self.terminal_states = self._property("", "terminal", body)

    def header(self, body: Callable[[Sizes], object]) -> None:
        """Say what header the trace of a path has, as a function of the sort sizes."""
        self.header_of = lambda sizes: body(KnownSizes(sizes))

    def idle(self, body: Callable[[View], Sequence[object]]) -> None:
        """Say which events tell that nothing more happens in a state, as a function of its view.

        They end the trace of a run that breaks a liveness property by staying where it is.
        """
        self.idle_events = body

    def ghost(self, *names: str, why: str) -> None:
        """Say which fields record what happens so that it can be judged; no implementation assigns them.

        Mutation testing leaves their assignments as they are: a change would be one of the world, not of a
        design. SpecError for a field that does not exist.
        """
        for name in names:
            if name not in self.functions:
                raise fail(f"machine {self.name} has no field {name}; {close(name, self.functions)}")
            self.ghosts[name] = why

    def accept_mutant(self, mutant: str, why: str) -> None:
        """Say why the machine may be changed so without an invariant noticing.

        ``mutant`` is the change as ``kvfence mutate`` names it; ``*`` stands for any text. The command fails
        when no such change exists, or when something notices it after all.
        """
        if not mutant.strip() or not why.strip():
            raise fail("accept_mutant takes the change as kvfence mutate names it, and why it is harmless")
        self.accepted.append(Acceptance(mutant, why, here()))

    def accept_idle(self, condition: str, why: str) -> None:
        """Say why an invariant or a check notices no small change of the machine: what implies it.

        ``kvfence mutate`` fails when there is no such condition, or when it notices something after all.
        """
        if not why.strip():
            raise fail(f"accept_idle does not say why {condition} notices nothing; name what implies it")
        self.accepted_idle.append(Acceptance(condition, why, here()))

    def assert_discovers(
        self,
        invariant: str,
        actions: Sequence[str | tuple[str, Mapping[str, object]]],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Pin a counterexample: the last of ``actions``, and none before it, violates ``invariant`` alone.

        Actions are written ``"lookup(r=0, local=0)"`` or as (name, arguments); the invariant by its own name
        or by its id in the catalogue, which then covers all that carry it. AssertionError, with what happened
        instead, where the run ends otherwise; SpecError for a name that does not exist, an argument that does
        not fit, or a step that cannot be taken.
        """
        from kvfence.spec.language.pinned_path import assert_discovers

        assert_discovers(self, invariant, actions, sizes)

    def _property(self, id_: str, name: str, body: Callable[..., object]) -> Property:
        where = here()
        state = State(self, name)
        _no_identity(body)
        e = state._closed(lift_bool(body(state), name))
        return Property(id_, name, inspect.cleandoc(body.__doc__ or ""), e, tuple(state._late), where=where)

    def _variables(self, name: str, params: dict[str, Type]) -> tuple[Expr, ...]:
        """The parameters of an action or a liveness property; SpecError for a type that they cannot have."""
        for p, t in params.items():
            self._known(t, f"parameter {p} of {name}")
            if isinstance(t, Int) and not t.bounded:
                raise fail(f"parameter {p} of {name} is an unbounded Int; write Int(lo, hi)")
        return tuple(variable("param", t, p) for p, t in params.items())

    def _condition(self, name: str, what: str) -> None:
        """What is judged has a name of its own: SpecError for a second one."""
        every: dict[str, dict[str, Any]] = {
            "invariant": self.invariants,
            "lemma": self.lemmas,
            "goal": self.goals,
            "promise": self.liveness,
        }
        for other, known in every.items():
            if name in known and other != what:
                raise fail(f"{name} is the name of {_a(other)} already; rename the {what}")
        self._new(name, every[what], what)
        if name == DEADLOCK:
            raise fail(f"{name} is the name of a condition that every machine has; rename the {what}")

    def _new(self, name: str, known: dict[str, Any], what: str) -> None:
        if name in known:
            raise fail(f"{what} {name} is declared twice in machine {self.name}; rename one")

    def _known(self, t: Type, use: str) -> None:
        if not isinstance(t, Type):
            raise fail(f"{use} has the type {t!r}; use a sort, an Enum, Int(lo, hi) or Bool")
        if isinstance(t, Sort) and self.sorts.get(t.name) is not t:
            raise fail(
                f"{use} uses sort {t.name} of another machine; declare it here with m.sort({t.name!r})"
            )

    def __repr__(self) -> str:
        return f"Machine({self.name})"


def _no_identity(body: object) -> None:
    """SpecError for ``is True`` and ``is False``, which no symbolic value can answer.

    Looked at are a body, the functions inside it, and those of its file that it names.
    """
    todo, visited = [body], set[types.CodeType]()
    while todo:
        found = todo.pop()
        code = found.__code__ if isinstance(found, types.FunctionType) else found
        if not isinstance(code, types.CodeType) or code in visited:
            continue
        visited.add(code)
        if isinstance(found, types.FunctionType):
            cells = (c.cell_contents for c in found.__closure__ or () if c != types.CellType())
            todo += [f for f in cells if _in_file(f, code.co_filename)]
        if code in _ANSWERED:
            continue
        if isinstance(found, types.FunctionType):
            names = (found.__globals__.get(name) for name in code.co_names)
            todo += [f for f in names if _in_file(f, code.co_filename)]
        todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        if _IS not in code.co_code[::2] or not any(isinstance(c, bool) for c in code.co_consts):
            continue
        loaded: object = None
        line = code.co_firstlineno
        for i in dis.get_instructions(code):
            line = i.starts_line or line
            if i.opname == "IS_OP" and isinstance(loaded, bool):
                raise fail(
                    f"`is {loaded}` (or `case {loaded}`) asks which object a value is, and no symbolic value "
                    "is that one; write x or ~x, and for a switch of yours `if switch:`",
                    place(code.co_filename, line),
                )
            loaded = i.argval if i.opname == "LOAD_CONST" else None
    _ANSWERED.update(visited)


def _in_file(found: object, filename: str) -> bool:
    return isinstance(found, types.FunctionType) and found.__code__.co_filename == filename


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _bounds_of(t: Type, what: str) -> Iterator[tuple[str, Callable[[Sizes], int]]]:
    for bound in (t.lo, t.hi) if isinstance(t, Int) else ():
        if callable(bound):
            yield what, bound


def _same_names(action: str, body: Callable[..., object], params: dict[str, Type]) -> None:
    names = list(inspect.signature(body).parameters)[1:]
    if set(names) != set(params):
        raise fail(
            f"action {action} declares ({', '.join(params)}) and its function takes ({', '.join(names)}); "
            "give both the same names"
        )


def _by_name(
    action: str, event: Callable[..., Sequence[object]], params: tuple[str, ...]
) -> Callable[..., Sequence[object]]:
    """``event`` as a function of two views and all arguments by name, whichever of them it asks for."""
    taken = list(inspect.signature(event).parameters.values())
    taken = taken[2:] if not taken or taken[0].kind is not taken[0].VAR_POSITIONAL else taken
    if any(p.kind is p.VAR_KEYWORD for p in taken):
        return event
    if any(p.kind is p.VAR_POSITIONAL for p in taken):
        return lambda pre, post, **args: event(pre, post, *(args[p] for p in params))
    wanted = [p.name for p in taken if p.default is p.empty or p.name in params]
    for name in wanted:
        if name not in params:
            raise fail(f"the event of {action} asks for {name}; {close(name, params)}")
    return lambda pre, post, **args: event(pre, post, **{p: args[p] for p in wanted})


__all__ = ["LEMMA", "Action", "Function", "Machine", "Property", "show"]
