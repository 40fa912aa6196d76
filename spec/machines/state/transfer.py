"""The states of the transfer machine: its sorts and fields, conditions on them, invariants and goals."""

from kvfence.spec.language import Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Implies, Not, Or
from kvfence.spec.machines.field_maps import transfer as events
from kvfence.spec.machines.field_maps.transfer import FULL

Status = Enum("Status", "waiting loading running finishing aborting gone")
Op = Enum("Op", "idle queued issued")

Request = Sort("Request", 2, __name__)
Block = Sort("Block", 2, __name__)
Host = Sort("Host", 1, __name__)
Operation = Sort("Operation", 2, __name__)
Rank = Sort("Rank", 2, __name__)


def held(s: State, b: Elem) -> Expr:
    """Whether a table, a fence or a transfer holds the GPU block."""
    return Or(
        Exists(Request, lambda r: s.table[r, b] | s.fence[r, b]), Exists(Operation, lambda o: s.op_pin[o, b])
    )


def host_held(s: State, h: Elem) -> Expr:
    """Whether a transfer holds the CPU slot."""
    return Exists(Operation, lambda o: s.host_pin[o, h])


def is_open(s: State, o: Elem) -> Expr:
    """Whether the operation is queued or issued."""
    return s.state[o] != Op.idle


def in_flight(s: State, r: Elem) -> Expr:
    """Whether a step of the request is in flight."""
    return s.flight[0, r] | s.flight[1, r]


def fenced(s: State, r: Elem) -> Expr:
    """Whether a fence keeps a block of the request."""
    return Exists(Block, lambda b: s.fence[r, b])


def loading_into(s: State, b: Elem) -> Expr:
    """Whether an open load fills the block."""
    return Exists(Operation, lambda o: is_open(s, o) & s.load[o] & s.block[o, b])


def storing(s: State) -> Expr:
    """Whether a store is open."""
    return Exists(Operation, lambda o: is_open(s, o) & Not(s.load[o]))


def all_reported(s: State, o: Elem) -> Expr:
    """Whether every rank has reported the operation."""
    return ForAll(Rank, lambda k: s.reported[o, k])


def resting(s: State) -> Expr:
    """Whether no request has blocks, so that a reset is possible."""

    def quiet(r: Elem) -> Expr:
        return Or(s.status[r] == Status.waiting, s.status[r] == Status.gone)

    return ForAll(Request, lambda r: quiet(r) & Not(fenced(s, r)))


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.function("status", Request, value=Status, init=Status.waiting)

    m.function("gen", Request, value=Int(0, 1), init=0)

    m.function("computed", Request, value=Int(0, FULL), init=0)  # tokens of dispatched steps

    m.function("confirmed", Request, value=Int(0, FULL), init=0)  # tokens of processed steps

    m.relation("table", Request, Block, init=False)

    m.relation("fence", Request, Block, init=False)

    m.relation("flight", Int(0, 1), Request, init=False)  # steps in flight, the older one first

    m.relation("reads", Request, Block, init=False)  # blocks that steps in flight read or write

    m.relation("covered", Request, init=False)  # the block is stored, queued or dropped

    m.relation("cursor", Request, init=False)  # the store cursor is past the block

    m.relation("label", Block, init=False)  # in the GPU prefix index

    m.relation("good", Block, init=False)  # has the content of the key

    m.relation("resident", Host, init=False)  # in the index of the CPU tier

    m.function("state", Operation, value=Op, init=Op.idle)

    m.function("uses", Operation, value=Int(0, 2), init=0)

    m.relation("load", Operation, init=False)

    m.relation("of", Operation, Request, init=False)  # the request, in its present generation

    m.relation("block", Operation, Block, init=False)  # the GPU side of the copy

    m.relation("host", Operation, Host, init=False)  # the CPU side of the copy

    m.relation("op_pin", Operation, Block, init=False)

    m.relation("host_pin", Operation, Host, init=False)

    m.relation("reported", Operation, Rank, init=False)

    m.relation("late", Operation, Rank, init=False)  # a repeated report is on its way

    m.function("late_uses", Operation, Rank, value=Int(0, 2), init=0)  # the use of the operation it is about

    m.relation("failed", Operation, init=False)

    m.relation("old", Operation, init=False)  # queued before a reset

    m.relation("was_reset", init=False)

    m.header(events.header)


def declare_safety(m: Machine) -> None:
    """Declare what every reachable state satisfies: what is in use is held, and has its content."""

    @m.invariant("FREEZE")
    def a_block_under_a_step_is_held(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.reads[r, b], held(s, b)))

    @m.invariant("FREEZE")
    def a_block_under_a_transfer_is_held(s: State) -> Expr:
        return ForAll(Operation, Block, lambda o, b: Implies(is_open(s, o) & s.block[o, b], held(s, b)))

    @m.invariant("FREEZE")
    def a_cpu_slot_under_a_transfer_is_held(s: State) -> Expr:
        return ForAll(Operation, Host, lambda o, h: Implies(is_open(s, o) & s.host[o, h], host_held(s, h)))

    @m.invariant("FREEZE")
    def a_step_in_flight_reads_a_block(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(in_flight(s, r), Exists(Block, lambda b: s.reads[r, b])))

    @m.invariant("USE-READY")
    def a_computed_token_is_confirmed_or_in_flight(s: State) -> Expr:
        def live(r: Elem) -> Expr:
            return Or(s.status[r] == Status.running, s.status[r] == Status.finishing)

        def tokens(r: Elem) -> Expr:
            return s.confirmed[r] + If(s.flight[0, r], 1, 0) + If(s.flight[1, r], 1, 0)

        return ForAll(Request, lambda r: Implies(live(r), s.computed[r] == tokens(r)))

    @m.invariant("USE-READY")
    def a_block_is_not_found_before_its_load_has_landed(s: State) -> Expr:
        return ForAll(Block, lambda b: Implies(s.label[b], Not(loading_into(s, b))))

    @m.invariant("FAIL-CLOSED")
    def a_block_that_can_be_found_has_its_content(s: State) -> Expr:
        return ForAll(Block, lambda b: Implies(s.label[b], Or(s.good[b], loading_into(s, b))))

    @m.invariant("FAIL-CLOSED")
    def a_store_copies_a_block_that_has_its_content(s: State) -> Expr:
        def storing_now(o: Elem) -> Expr:
            return is_open(s, o) & Not(s.load[o]) & Not(s.old[o])

        return ForAll(Operation, Block, lambda o, b: Implies(storing_now(o) & s.block[o, b], s.good[b]))

    @m.invariant("FAIL-CLOSED")
    def a_failure_is_reported_by_a_rank(s: State) -> Expr:
        return ForAll(Operation, lambda o: Implies(s.failed[o], Exists(Rank, lambda k: s.reported[o, k])))


def declare_accounting(m: Machine) -> None:
    """Declare what every reachable state satisfies: operations, cursors and holders are accounted for."""

    @m.invariant("ONCE")
    def an_open_operation_copies_a_block(s: State) -> Expr:
        def has_both_sides(o: Elem) -> Expr:
            return And(Exists(Block, lambda b: s.block[o, b]), Exists(Host, lambda h: s.host[o, h]))

        return ForAll(Operation, lambda o: Implies(is_open(s, o), And(s.uses[o] >= 1, has_both_sides(o))))

    @m.invariant("ONCE")
    def a_late_report_is_of_some_use(s: State) -> Expr:
        def used(o: Elem, k: Elem) -> Expr:
            return If(s.late[o, k], s.late_uses[o, k] >= 1, s.late_uses[o, k] == 0)

        return ForAll(Operation, Rank, used)

    @m.invariant("ONCE")
    def a_late_report_of_the_present_use_was_counted(s: State) -> Expr:
        def present(o: Elem, k: Elem) -> Expr:
            return And(s.late[o, k], s.late_uses[o, k] == s.uses[o], is_open(s, o))

        return ForAll(Operation, Rank, lambda o, k: Implies(present(o, k), s.reported[o, k]))

    @m.invariant("ONCE")
    def a_request_never_loads_and_stores_at_once(s: State) -> Expr:
        return ForAll(
            Operation,
            Operation,
            Request,
            lambda o, p, r: Not(And(s.of[o, r], s.of[p, r], s.load[o], Not(s.load[p]), is_open(s, p))),
        )

    @m.invariant("CURSOR")
    def the_cursor_passes_only_what_is_accounted_for(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.cursor[r], s.covered[r]))

    @m.invariant("CURSOR")
    def the_cursor_keeps_up_with_what_is_accounted_for(s: State) -> Expr:
        def passed(r: Elem) -> Expr:
            return s.covered[r] & (s.status[r] != Status.aborting)

        return ForAll(Request, lambda r: Implies(passed(r), s.cursor[r]))

    @m.invariant("FLUSH")
    def only_a_full_confirmed_block_is_accounted_for(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.covered[r], s.confirmed[r] == FULL))

    @m.invariant("FLUSH")
    def a_request_finishes_with_all_tokens_confirmed(s: State) -> Expr:
        return ForAll(Request, lambda r: Implies(s.status[r] == Status.finishing, s.confirmed[r] == FULL))

    @m.invariant("NO-LEAK")
    def a_request_that_is_gone_holds_nothing(s: State) -> Expr:
        return ForAll(
            Request,
            Block,
            lambda r, b: Implies(s.status[r] == Status.gone, Not(s.table[r, b] | s.fence[r, b])),
        )

    @m.invariant("NO-LEAK")
    def an_idle_operation_holds_nothing(s: State) -> Expr:
        def holds(o: Elem) -> Expr:
            return Or(Exists(Block, lambda b: s.op_pin[o, b]), Exists(Host, lambda h: s.host_pin[o, h]))

        return ForAll(Operation, lambda o: Implies(s.state[o] == Op.idle, Not(holds(o))))

    @m.invariant("NO-LEAK")
    def a_fence_is_lifted_after_the_last_step(s: State) -> Expr:
        return ForAll(Request, Block, lambda r, b: Implies(s.fence[r, b], s.reads[r, b]))

    @m.invariant("NO-LEAK")
    def the_second_step_waits_for_a_first(s: State) -> Expr:
        first = Exists(Request, lambda q: s.flight[0, q])
        return ForAll(Request, lambda r: Implies(s.flight[1, r], first))

    @m.invariant("NO-LEAK")
    def a_loading_request_has_a_load(s: State) -> Expr:
        def has_load(r: Elem) -> Expr:
            return Exists(Operation, lambda o: s.load[o] & s.of[o, r])

        return ForAll(Request, lambda r: Implies(s.status[r] == Status.loading, has_load(r)))

    @m.invariant("UNIQUE")
    def a_table_has_the_block_once(s: State) -> Expr:
        return ForAll(Request, Block, Block, lambda r, b, c: Implies(s.table[r, b] & s.table[r, c], b == c))

    @m.invariant("UNIQUE")
    def the_tier_has_a_key_once(s: State) -> Expr:
        return ForAll(Host, Host, lambda g, h: Implies(s.resident[g] & s.resident[h], g == h))


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and that every operation completes."""

    @m.goal
    def two_steps_are_in_flight(s: State) -> Expr:
        return Exists(Request, lambda r: s.flight[1, r])

    @m.goal
    def a_rank_reports_before_another(s: State) -> Expr:
        def halfway(o: Elem) -> Expr:
            some = Exists(Rank, lambda k: s.reported[o, k])
            return And(Not(s.failed[o]), some, Not(all_reported(s, o)))

        return Exists(Operation, halfway)

    @m.goal
    def a_failure_arrives_before_another_report(s: State) -> Expr:
        return Exists(Operation, lambda o: s.failed[o] & Not(all_reported(s, o)))

    @m.goal
    def a_fence_outlives_a_preemption(s: State) -> Expr:
        return Exists(Request, lambda r: fenced(s, r) & (s.status[r] == Status.waiting))

    @m.goal
    def a_store_outlives_its_request(s: State) -> Expr:
        return Exists(
            Operation,
            Request,
            lambda o, r: is_open(s, o) & Not(s.load[o]) & s.of[o, r] & (s.status[r] == Status.gone),
        )

    @m.goal
    def a_late_report_meets_a_newer_generation(s: State) -> Expr:
        return Exists(
            Operation, Rank, lambda o, k: s.late[o, k] & (s.state[o] == Op.issued) & Not(s.reported[o, k])
        )

    @m.goal
    def a_preempted_request_comes_back_by_a_load(s: State) -> Expr:
        return Exists(Request, lambda r: (s.gen[r] == 1) & (s.status[r] == Status.loading))

    @m.goal
    def an_operation_is_in_flight_across_a_reset(s: State) -> Expr:
        return Exists(Operation, lambda o: s.old[o])

    @m.goal
    def two_requests_share_a_block(s: State) -> Expr:
        return Exists(Request, Request, Block, lambda q, r, b: (q != r) & s.table[q, b] & s.table[r, b])

    m.leads_to(
        "every_queued_operation_completes",
        lambda s, o: s.state[o] == Op.queued,
        lambda s, o: s.state[o] == Op.idle,
        id_="ONCE",
        doc="an operation that was queued is idle again some day",
        o=Operation,
    )
