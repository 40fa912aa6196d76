"""Why the transfer machine is safe at any size: what its proofs need besides the invariants.

Read in four parts: operations, steps in flight, what a request's status says, and loads and stores. Each
lemma says why it holds; all of them and the invariants are proved together, each step keeping all.
"""

from kvfence.spec.language import Machine, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Iff, Implies, IsIn, Not, Or
from kvfence.spec.machines.field_maps.transfer import FULL
from kvfence.spec.machines.state.transfer import (
    Block,
    Host,
    Operation,
    Rank,
    Request,
    Status,
    in_flight,
    is_open,
)


def declare(m: Machine) -> None:
    """Add the lemmas to the machine."""
    for part in (_operations, _steps_in_flight, _requests, _loads_and_stores):
        part(m)


def _operations(m: Machine) -> None:
    """Add what holds of operations."""

    @m.lemma
    def an_idle_operation_is_blank(s: State) -> Expr:
        """Completion clears all that an operation has, and only an open one is given anything."""

        def blank(o: Elem) -> Expr:
            return And(
                Not(s.load[o] | s.failed[o] | s.old[o]),
                ForAll(Request, lambda r: Not(s.of[o, r])),
                ForAll(Block, lambda b: Not(s.block[o, b])),
                ForAll(Host, lambda h: Not(s.host[o, h])),
                ForAll(Rank, lambda k: Not(s.reported[o, k])),
            )

        return ForAll(Operation, lambda o: Or(is_open(s, o), blank(o)))

    @m.lemma
    def an_operation_pins_the_block_that_it_copies(s: State) -> Expr:
        """It takes the block and the pin together, and lets go of both when it is complete."""
        return ForAll(Operation, Block, lambda o, b: Iff(s.op_pin[o, b], s.block[o, b]))

    @m.lemma
    def an_operation_pins_the_cpu_slot_that_it_copies(s: State) -> Expr:
        """It takes the slot and the pin together, and lets go of both when it is complete."""
        return ForAll(Operation, Host, lambda o, h: Iff(s.host_pin[o, h], s.host[o, h]))

    @m.lemma
    def an_operation_has_one_cpu_slot(s: State) -> Expr:
        """It gets one when it starts, with none before."""
        return ForAll(Operation, Host, Host, lambda o, g, h: Implies(s.host[o, g] & s.host[o, h], g == h))

    @m.lemma
    def a_late_report_is_about_a_use_that_has_begun(s: State) -> Expr:
        """It repeats a report of its time, and uses are only ever counted up."""
        return ForAll(Operation, Rank, lambda o, k: Implies(s.late[o, k], s.late_uses[o, k] <= s.uses[o]))


def _steps_in_flight(m: Machine) -> None:
    """Add what holds of steps in flight."""

    @m.lemma
    def each_place_in_the_pipeline_has_one_step(s: State) -> Expr:
        """A step enters behind the one in flight, if any, and only while the second place is free."""

        def same_place(q: Elem, r: Elem) -> Expr:
            return Or(s.flight[0, q] & s.flight[0, r], s.flight[1, q] & s.flight[1, r])

        return ForAll(Request, Request, lambda q, r: Implies(same_place(q, r), q == r))

    @m.lemma
    def a_step_reads_blocks_of_its_table_or_its_fence(s: State) -> Expr:
        """Preemption turns the table into a fence, and fences go when the last step is processed."""
        return ForAll(
            Request,
            Block,
            lambda r, b: Implies(s.reads[r, b], And(in_flight(s, r), s.table[r, b] | s.fence[r, b])),
        )

    @m.lemma
    def tokens_in_flight_are_computed_and_not_confirmed(s: State) -> Expr:
        """Dispatch counts a token as computed, processing confirms it; an abort stops the confirming."""

        def tokens(r: Elem) -> Expr:
            return s.confirmed[r] + If(s.flight[0, r], 1, 0) + If(s.flight[1, r], 1, 0)

        return ForAll(Request, lambda r: Or(s.status[r] == Status.waiting, tokens(r) <= s.computed[r]))


def _requests(m: Machine) -> None:
    """Add what a request's status says."""

    @m.lemma
    def a_waiting_request_starts_from_nothing(s: State) -> Expr:
        """Requests arrive without anything, and preemption takes everything but the fence."""

        def nothing(r: Elem) -> Expr:
            return And(
                s.computed[r] == 0,
                s.confirmed[r] == 0,
                ForAll(Block, lambda b: Not(s.table[r, b])),
                ForAll(Operation, lambda o: Not(s.of[o, r])),
            )

        return ForAll(Request, lambda r: Implies(s.status[r] == Status.waiting, nothing(r)))

    @m.lemma
    def a_loading_request_has_no_step(s: State) -> Expr:
        """Steps are dispatched for running requests only, and a load begins when none is in flight."""
        return ForAll(Request, lambda r: Implies(s.status[r] == Status.loading, s.computed[r] == 0))

    @m.lemma
    def only_a_waiting_request_has_a_fence(s: State) -> Expr:
        """Admission and abort wait until the fence is gone."""
        return ForAll(Request, Block, lambda r, b: Implies(s.fence[r, b], s.status[r] == Status.waiting))

    @m.lemma
    def a_waiting_request_in_flight_has_a_fence(s: State) -> Expr:
        """Preemption with steps in flight fences the table, which is not empty."""
        return ForAll(
            Request,
            lambda r: Implies(
                And(s.status[r] == Status.waiting, in_flight(s, r)), Exists(Block, lambda b: s.fence[r, b])
            ),
        )

    @m.lemma
    def an_admitted_request_has_a_block(s: State) -> Expr:
        """Admission gives it one, and it goes when the request is preempted or retires."""
        return ForAll(
            Request,
            lambda r: Or(
                IsIn(s.status[r], Status.waiting, Status.gone), Exists(Block, lambda b: s.table[r, b])
            ),
        )

    @m.lemma
    def an_aborted_request_is_accounted_for(s: State) -> Expr:
        """Abort drops the block if all its tokens are confirmed, and no more are confirmed after it."""
        return ForAll(
            Request, lambda r: Implies(s.status[r] == Status.aborting, s.covered[r] | (s.confirmed[r] < FULL))
        )

    @m.lemma
    def a_request_that_is_gone_has_no_step(s: State) -> Expr:
        """It retires when nothing is in flight, and its tokens are no longer counted."""
        return ForAll(Request, lambda r: Implies(s.status[r] == Status.gone, s.computed[r] == 0))

    @m.lemma
    def a_confirmed_block_has_its_content(s: State) -> Expr:
        """Its last token was processed, its load landed, or it was found; a held block keeps its content."""
        return ForAll(
            Request, Block, lambda r, b: Implies(s.table[r, b] & (s.confirmed[r] == FULL), s.good[b])
        )


def _loads_and_stores(m: Machine) -> None:
    """Add what holds of loads and stores."""

    @m.lemma
    def a_block_that_is_loaded_belongs_to_the_load(s: State) -> Expr:
        """The load gets a block that nobody holds, and until it has landed nobody else can find it."""

        def only_use(o: Elem, b: Elem) -> Expr:
            return And(
                ForAll(Request, lambda r: Implies(s.table[r, b], s.of[o, r])),
                ForAll(Operation, lambda p: Implies(s.block[p, b], p == o)),
            )

        return ForAll(Operation, Block, lambda o, b: Implies(s.load[o] & s.block[o, b], only_use(o, b)))

    @m.lemma
    def a_request_waits_for_its_load(s: State) -> Expr:
        """It runs only when the load is complete; aborted before, it stays until then."""
        return ForAll(
            Operation,
            Request,
            lambda o, r: Implies(s.load[o] & s.of[o, r], IsIn(s.status[r], Status.loading, Status.aborting)),
        )

    @m.lemma
    def a_request_has_one_load(s: State) -> Expr:
        """A load begins for a waiting request, which has no operation."""

        def loads(o: Elem, r: Elem) -> Expr:
            return s.load[o] & s.of[o, r]

        return ForAll(
            Operation, Operation, Request, lambda o, p, r: Implies(loads(o, r) & loads(p, r), o == p)
        )

    @m.lemma
    def a_load_fills_the_table_of_its_request(s: State) -> Expr:
        """The request gets the block and the load for it together, with an empty table before."""

        def filled(o: Elem, r: Elem, b: Elem) -> Expr:
            return Implies(s.load[o] & s.of[o, r] & s.table[r, b], s.block[o, b])

        return ForAll(Operation, Request, Block, filled)

    @m.lemma
    def one_store_at_a_time(s: State) -> Expr:
        """There is one key, and a store begins only when no other is open."""

        def stores(o: Elem) -> Expr:
            return is_open(s, o) & Not(s.load[o])

        return ForAll(Operation, Operation, lambda o, p: Implies(stores(o) & stores(p), o == p))

    @m.lemma
    def a_store_is_open_only_while_the_tier_lacks_the_key(s: State) -> Expr:
        """A store begins when the key is not resident, and only its own completion makes it so."""
        return ForAll(
            Operation, Host, lambda o, h: Implies(is_open(s, o) & Not(s.load[o]), Not(s.resident[h]))
        )
