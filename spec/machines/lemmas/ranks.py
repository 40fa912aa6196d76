"""Why the ranks machine is safe for any number of ranks and operations: what its proofs need besides."""

from kvfence.spec.language import Elem, Enum, Expr, ForAll, Iff, Implies, IsIn, Machine, State


def declare(m: Machine, leader: Enum, part: Enum) -> None:
    """Add the lemmas to the machine; ``leader`` and ``part`` are the types of its fields of these names."""
    Leader, Part = leader, part
    Operation, Rank = m.sorts["Operation"], m.sorts["Rank"]

    @m.lemma
    def before_the_decision_ranks_only_answer(s: State) -> Expr:
        """They begin or let go when they hear of it."""

        def answers(o: Elem, k: Elem) -> Expr:
            return IsIn(s.part[o, k], Part.none, Part.reserved, Part.refused)

        return ForAll(Operation, Rank, lambda o, k: Implies(s.leader[o] == Leader.asking, answers(o, k)))

    @m.lemma
    def of_what_is_committed_all_ranks_do_their_part(s: State) -> Expr:
        """All have reserved when the leader commits."""

        def does(o: Elem, k: Elem) -> Expr:
            return IsIn(s.part[o, k], Part.reserved, Part.copying, Part.done, Part.broken)

        return ForAll(Operation, Rank, lambda o, k: Implies(s.leader[o] == Leader.committed, does(o, k)))

    @m.lemma
    def of_what_is_aborted_no_rank_does_its_part(s: State) -> Expr:
        """None has begun when the leader aborts."""

        def does_nothing(o: Elem, k: Elem) -> Expr:
            return IsIn(s.part[o, k], Part.none, Part.reserved, Part.refused, Part.aborted)

        return ForAll(
            Operation, Rank, lambda o, k: Implies(s.leader[o] == Leader.aborting, does_nothing(o, k))
        )

    @m.lemma
    def what_can_be_found_is_complete(s: State) -> Expr:
        """It is found at the end, and the next use begins when it is found no more."""
        return ForAll(Operation, lambda o: Implies(s.found[o], s.leader[o] == Leader.idle))

    @m.lemma
    def an_operation_that_is_over_remembers_no_failure(s: State) -> Expr:
        """Its end clears it, and only a report of a committed one is counted."""
        return ForAll(Operation, lambda o: Implies(s.failed[o], s.leader[o] == Leader.committed))

    @m.lemma
    def only_a_committed_operation_is_reported(s: State) -> Expr:
        """A rank begins, and so ends, only what is committed."""
        return ForAll(
            Operation, Rank, lambda o, k: Implies(s.reported[o, k], s.leader[o] == Leader.committed)
        )

    @m.lemma
    def a_report_is_of_a_copy_that_is_over(s: State) -> Expr:
        """A copy and its report end together."""
        return ForAll(
            Operation,
            Rank,
            lambda o, k: Implies(
                s.leader[o] == Leader.committed,
                Iff(s.reported[o, k], IsIn(s.part[o, k], Part.done, Part.broken)),
            ),
        )

    @m.lemma
    def a_rank_that_failed_has_told_so(s: State) -> Expr:
        """Its report and its failure are one message."""
        return ForAll(Operation, Rank, lambda o, k: Implies(s.part[o, k] == Part.broken, s.failed[o]))

    @m.lemma
    def a_repeated_report_is_of_a_use_that_has_begun(s: State) -> Expr:
        """It repeats a report of its time, and uses are only ever counted up."""
        return ForAll(Operation, Rank, lambda o, k: s.repeats[o, k] <= s.uses[o])
