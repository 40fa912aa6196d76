"""Why the scheduling machine is safe at any size: what its proofs need besides the invariants."""

from kvfence.spec.language import And, Elem, Enum, Exists, Expr, ForAll, Implies, IsIn, Machine, Or, State


def declare(m: Machine, status: Enum, tokens: int) -> None:
    """Add the lemmas to the machine.

    ``status`` is the type of its field of that name; a request has ``tokens`` tokens.
    """
    Status = status
    Request, Block = m.sorts["Request"], m.sorts["Block"]

    def in_flight(s: State, r: Elem) -> Expr:
        return s.flight[0, r] | s.flight[1, r]

    # Steps in flight.

    @m.lemma
    def each_place_in_the_pipeline_has_one_step(s: State) -> Expr:
        """A step enters behind the one in flight, if any, and only while the second place is free."""

        def same_place(q: Elem, r: Elem) -> Expr:
            return Or(s.flight[0, q] & s.flight[0, r], s.flight[1, q] & s.flight[1, r])

        return ForAll(Request, Request, lambda q, r: Implies(same_place(q, r), q == r))

    @m.lemma
    def the_second_step_waits_for_a_first(s: State) -> Expr:
        """A step is the second one only behind a first, and moves up when that is processed."""
        first = Exists(Request, lambda q: s.flight[0, q])
        return ForAll(Request, lambda r: Implies(s.flight[1, r], first))

    @m.lemma
    def a_step_reads_blocks_of_its_table_or_its_fence(s: State) -> Expr:
        """Preemption turns the table into a fence, and fences go when the last step is processed."""
        return ForAll(
            Request,
            Block,
            lambda r, b: Implies(s.reads[r, b], And(in_flight(s, r), s.table[r, b] | s.fence[r, b])),
        )

    @m.lemma
    def only_running_and_preempted_requests_have_steps(s: State) -> Expr:
        """Admission waits for the steps of the time before, and a request is done when all are processed."""
        return ForAll(
            Request, lambda r: Implies(in_flight(s, r), IsIn(s.status[r], Status.waiting, Status.running))
        )

    # Tokens.

    @m.lemma
    def no_more_tokens_are_dispatched_than_a_request_has(s: State) -> Expr:
        """A step is dispatched only for a token that is neither confirmed nor in flight."""
        return ForAll(Request, lambda r: s.confirmed[r] + s.placeholders[r] <= tokens)

    @m.lemma
    def a_request_that_does_not_run_counts_no_token(s: State) -> Expr:
        """Preemption and the end take all of them."""
        return ForAll(
            Request,
            lambda r: Or(s.status[r] == Status.running, And(s.confirmed[r] == 0, s.placeholders[r] == 0)),
        )
