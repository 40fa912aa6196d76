"""Why block counts are right for blocks of any size: what the proofs need besides the invariants.

Everything is about two positions a fixed distance apart. In blocks and offsets of one block size, their
difference is the distance, or one block more and a block's tokens less: see ``apart``.
"""

from kvfence.spec.language import And, Elem, Enum, Expr, ForAll, If, Implies, IsIn, Machine, Or, State


def apart(s: State, g: Elem, late: str, early: str, distance: str) -> Expr:
    """Position ``late`` is ``distance`` tokens behind position ``early``; each names two fields."""

    def of(name: str) -> tuple[Expr, Expr]:
        return getattr(s, f"{name}_blocks")[g], getattr(s, f"{name}_offset")[g]

    (b, o), (c, p), (d, q) = of(late), of(early), of(distance)
    return Or(And(b - c == d, o - p == q), And(b - c == d + 1, o - p == q - s.size[g]))


def ends_a_block(s: State, g: Elem, place: str, distance: str) -> Expr:
    """The position is ``distance`` tokens behind the end of the blocks up to ``place``."""
    blocks, d = getattr(s, f"{place}_blocks")[g], getattr(s, f"{distance}_blocks")[g]
    return And(s.at_blocks[g] - blocks == d, s.at_offset[g] == getattr(s, f"{distance}_offset")[g])


POSITIONS = ("reach", "ahead", "at", "end", "first", "since", "past", "gone")


def declare(m: Machine, kind: Enum, phase: Enum) -> None:
    """Add the lemmas to the machine; ``kind`` and ``phase`` are the types of its fields of these names."""
    _positions(m, kind, phase)
    _phases_and_places(m, kind, phase)


def _positions(m: Machine, kinds: Enum, phases: Enum) -> None:
    """Add what holds of positions and distances."""
    Kind, Phase, Group = kinds, phases, m.sorts["Group"]

    @m.lemma
    def an_offset_is_inside_its_block(s: State) -> Expr:
        """A position that reaches the end of a block is at the start of the next."""

        def inside(g: Elem) -> Expr:
            known = And(s.size[g] >= 1, *(getattr(s, f"{p}_offset")[g] < s.size[g] for p in POSITIONS))
            nowhere = And(
                s.size[g] == 0,
                s.reach[g] == 0,
                *(getattr(s, f"{p}_{part}")[g] == 0 for p in POSITIONS for part in ("blocks", "offset")),
            )
            return If(s.kind[g] == Kind.unknown, nowhere, known)

        return ForAll(Group, inside)

    @m.lemma
    def what_is_read_begins_as_far_back_as_it_reaches(s: State) -> Expr:
        """Both ends move on together, or the distance grows."""
        return ForAll(Group, lambda g: apart(s, g, "at", "first", "since"))

    @m.lemma
    def what_is_reserved_is_ahead(s: State) -> Expr:
        """The end moves on with the position."""
        return ForAll(Group, lambda g: apart(s, g, "end", "at", "ahead"))

    @m.lemma
    def nothing_is_read_beyond_the_reach(s: State) -> Expr:
        """The distance stops growing at the reach, or begins anew."""

        def within(g: Elem) -> Expr:
            same = s.since_blocks[g] == s.reach_blocks[g]
            less = Or(s.since_blocks[g] < s.reach_blocks[g], same & (s.since_offset[g] < s.reach_offset[g]))
            equal = same & (s.since_offset[g] == s.reach_offset[g])
            slides = IsIn(s.kind[g], Kind.window, Kind.recurrent)
            started = s.phase != Phase.shape
            return And(Implies(slides, Or(less, equal)), Implies((s.kind[g] == Kind.chunked) & started, less))

        return ForAll(Group, within)

    @m.lemma
    def a_reach_is_a_distance(s: State) -> Expr:
        """Both are counted by the same steps of set-up."""
        return ForAll(
            Group, lambda g: (s.reach[g] >= 1) == Or(s.reach_blocks[g] >= 1, s.reach_offset[g] >= 1)
        )

    @m.lemma
    def a_recurrent_group_reads_one_token(s: State) -> Expr:
        """It is described so, and is not widened."""
        return ForAll(Group, lambda g: Implies(s.kind[g] == Kind.recurrent, s.reach[g] == 1))


def _phases_and_places(m: Machine, kinds: Enum, phases: Enum) -> None:
    """Add what the phases say, and the places at which every group ends a block."""
    Kind, Phase, Group = kinds, phases, m.sorts["Group"]

    @m.lemma
    def slots_are_reserved_when_every_group_is_known(s: State) -> Expr:
        """The lookahead is chosen after the groups."""
        return Or(s.ahead == 0, ForAll(Group, lambda g: s.kind[g] != Kind.unknown))

    @m.lemma
    def nothing_is_written_before_the_set_up_is_over(s: State) -> Expr:
        """Writing begins with it."""

        def nothing(g: Elem) -> Expr:
            zero = ("at_blocks", "at_offset", "first_blocks", "first_offset", "since_blocks", "since_offset")
            return And(*(getattr(s, name)[g] == 0 for name in zero), s.kept[g] == 0)

        return Implies(s.phase == Phase.shape, And(s.length == 0, ForAll(Group, nothing)))

    @m.lemma
    def after_the_set_up_every_group_is_known(s: State) -> Expr:
        """Writing begins when each is described, and reaches back if its kind does."""

        def known(g: Elem) -> Expr:
            return And(s.kind[g] != Kind.unknown, Or(s.kind[g] == Kind.full, s.reach[g] >= 1))

        return Or(s.phase == Phase.shape, ForAll(Group, known))

    @m.lemma
    def places_come_one_after_another(s: State) -> Expr:
        """Each is noted when a token is written behind it."""

        def ordered(g: Elem) -> Expr:
            return And(
                s.before_need[g] <= s.last_need[g],
                s.last_need[g] <= s.first_blocks[g],
                s.before_blocks[g] <= s.last_blocks[g],
                s.last_blocks[g] <= s.at_blocks[g],
                s.before_need[g] <= s.before_blocks[g],
                s.last_need[g] <= s.last_blocks[g],
                s.first_blocks[g] <= s.at_blocks[g],
            )

        at_end = Or(s.last < s.length, And(s.length == 0, s.last == 0))
        return And(s.before <= s.last, at_end, ForAll(Group, ordered))

    @m.lemma
    def positions_do_not_outgrow_the_prompt(s: State) -> Expr:
        """A block has a token at least."""
        return ForAll(
            Group,
            lambda g: And(
                s.at_blocks[g] <= s.length,
                s.since_blocks[g] <= s.length,
                s.reach_blocks[g] <= s.reach[g],
                s.ahead_blocks[g] <= s.ahead,
                s.end_blocks[g] <= s.length + s.ahead,
            ),
        )

    @m.lemma
    def a_promise_is_of_a_place(s: State) -> Expr:
        """A lookup promises up to the place that the writer kept blocks for."""

        def of_it(g: Elem) -> Expr:
            return If(
                s.ahead > 0,
                And(s.hit_from[g] == s.before_need[g], s.hit_blocks[g] == s.before_blocks[g]),
                And(s.hit_from[g] == s.last_need[g], s.hit_blocks[g] == s.last_blocks[g]),
            )

        promised = Or(s.phase == Phase.promised, s.phase == Phase.accepted)
        place = If(s.ahead > 0, s.before, s.last)
        return Implies(promised, And(s.length > 0, s.hit == place, ForAll(Group, of_it)))

    @m.lemma
    def equal_places_need_the_same(s: State) -> Expr:
        """A place is noted once, except the beginning, where nothing is needed."""
        same = ForAll(Group, lambda g: s.before_need[g] == s.last_need[g])
        return Implies(s.before == s.last, same)

    @m.lemma
    def only_a_reader_counts(s: State) -> Expr:
        """It counts once it is accepted, and takes its counts with it."""
        idle = ForAll(Group, lambda g: And(s.claim[g] == 0, ~s.counted[g]))
        return Or(s.phase == Phase.accepted, idle)
