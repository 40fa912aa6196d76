"""Block counts: groups of different kinds and block sizes over the tokens of one prompt.

A group keeps KV by blocks of its own size. What the token at position ``n`` reads in it begins, by kind, at

* **full**: the first token,
* **window**: ``reach`` tokens before ``n``, aligned to nothing,
* **chunked**: the last multiple of ``reach``,
* **recurrent**: the token before ``n``, whose block has the state.

A writer computes a prompt token by token, and lets go of the blocks in front of what will be read. Then a
reader with the same prompt looks it up. Its hit must end with a block in every group at once, and leave a
token to compute; a drafter (speculative decoding, with slots reserved ahead) gives up one such place more,
once for all groups. Both count blocks without the null blocks that stand for what was let go.

All of it is linear in the integers although blocks have any size, because nothing is ever divided: each
position is kept as a number of blocks and an offset in the block, and moves on by one token at a time; reach
and lookahead are chosen by as many steps of set-up as they have tokens. Two positions a fixed number of
tokens apart then differ by one of two block counts, and that invariant is all that the proofs rest on. The
sorts ``Token`` and ``Ahead`` have no element that matters: their numbers bound the lengths.
"""

from collections.abc import Callable, Mapping

from kvfence.spec.language import Enum, Int, Machine, Sort, State
from kvfence.spec.language.expr import And, Elem, Exists, Expr, ForAll, If, Implies, IsIn, Not, Or, limit
from kvfence.spec.machines.field_maps import geometry as events
from kvfence.spec.machines.lemmas import geometry as geometry_lemmas
from kvfence.spec.machines.state.relations import declare_sorts

Kind = Enum("Kind", "unknown full window chunked recurrent")
Phase = Enum("Phase", "shape write promised accepted")

REPEATS = "What was done already is done again, and changes nothing."
UNREAD = "Between two readers the fields of the reader are not read."
ACCEPTED = (
    ("describe: without guard kind[g] == unknown", REPEATS),
    ("describe: reach_blocks: without n == 1", "A group that reads more keeps more."),
    ("widen: without guard phase == shape", "A group that reads more from now on keeps more."),
    ("write: before_need is not assigned", "A reader that wants more than it reads is served, too."),
    ("write: moves: false -> true", "The field is read within a step only, after it is written."),
    ("slide: without guard phase == write", "The writer may go on while a reader reads what is kept for it."),
    ("allocate: without guard not counted[g]", REPEATS),
    ("leave: *", UNREAD),
)
"""How the machine may be changed without an invariant noticing."""


def longest(sizes: Mapping[str, int]) -> int:
    """The most tokens of a prompt."""
    return sizes["Token"]


def furthest(sizes: Mapping[str, int]) -> int:
    """The most tokens that are reserved ahead."""
    return sizes["Ahead"]


Group = Sort("Group", 2, __name__)
Token = Sort("Token", 5, __name__)  # the longest prompt
Ahead = Sort("Ahead", 1, __name__)  # the most tokens that are reserved ahead
Reserved = Int(0, furthest)
Length = Int(0, longest)
Further = Int(0, lambda sizes: sizes["Token"] + sizes["Ahead"])


def forward(s: State, name: str, when: Callable[[Elem], Expr | bool]) -> None:
    """The position moves on by one token in each group with ``when``."""
    blocks, offset = getattr(s, f"{name}_blocks"), getattr(s, f"{name}_offset")

    def wraps(g: Elem) -> Expr:
        over: Expr = offset[g] + 1 == s.size[g]
        return over

    blocks.update(lambda g: If(And(when(g), wraps(g)), blocks[g] + 1, blocks[g]))
    offset.update(lambda g: If(when(g), If(wraps(g), 0, offset[g] + 1), offset[g]))


def limited(s: State, g: Elem) -> Expr:
    """Whether the group reads no more than its reach."""
    return IsIn(s.kind[g], Kind.window, Kind.chunked, Kind.recurrent)


def every_group_ends_a_block(s: State) -> Expr:
    """Whether the position is the end of a block in every group."""
    return ForAll(Group, lambda g: s.at_offset[g] == 0)


def no_events(*_: object) -> list[object]:
    """Give no event: a group is observed when something is done with it."""
    return []  # which groups there are is told with what is done with them


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.header(events.header)

    m.function("phase", value=Phase, init=Phase.shape)
    m.function("kind", Group, value=Kind, init=Kind.unknown)
    m.function("size", Group, value=Length, init=0)  # tokens of a block

    # Positions and distances, in blocks of the group and tokens beyond them.
    for name, most in (("reach", Length), ("ahead", Further), ("at", Length), ("end", Further)):
        m.function(f"{name}_blocks", Group, value=most, init=0)
        m.function(f"{name}_offset", Group, value=Length, init=0)
    # What the next token reads begins at first, since tokens before it; the last two places at which every
    # group ends a block are past and gone tokens before it.
    for name in ("first", "since", "past", "gone"):
        m.function(f"{name}_blocks", Group, value=Length, init=0)
        m.function(f"{name}_offset", Group, value=Length, init=0)

    m.relation("moves", Group, init=False)  # within a step only: which groups a decision is for

    m.function("reach", Group, value=Length, init=0)  # in tokens

    m.function("ahead", value=Reserved, init=0)  # in tokens

    m.function("length", value=Length, init=0)  # tokens written
    m.function("kept", Group, value=Length, init=0)  # blocks in front of this one have been let go

    # The last two places in front of the last token at which every group ends a block.
    m.function("last", value=Length, init=0)
    m.function("before", value=Length, init=0)
    m.function("past", value=Length, init=0)
    m.function("gone", value=Length, init=0)
    for name in ("last", "before"):
        m.function(f"{name}_blocks", Group, value=Length, init=0)  # blocks up to there
        m.function(f"{name}_need", Group, value=Length, init=0)  # the first block that is read there

    # What the reader has.
    m.function("hit", value=Length, init=0)
    m.function("hit_blocks", Group, value=Length, init=0)
    m.function("hit_from", Group, value=Length, init=0)  # the first block that is promised
    m.function("to_compute", value=Length, init=0)
    m.relation("counted", Group, init=False)
    m.function("claim", Group, value=Length, init=0)  # blocks asked for


def declare_groups(m: Machine) -> None:
    """Declare what groups there are."""

    @m.action(g=Group, k=Kind, n=Length, event=no_events)
    def describe(s: State, g: Elem, k: Expr, n: Expr) -> None:
        """Group g is of kind k, with blocks of n tokens."""
        s.require(s.phase == Phase.shape, s.kind[g] == Kind.unknown, k != Kind.unknown, n >= 1, s.ahead == 0)
        one = k == Kind.recurrent
        s.kind[g] = k
        s.size[g] = n
        s.reach[g] = If(one, 1, 0)
        s.reach_blocks[g] = If(one & (n == 1), 1, 0)
        s.reach_offset[g] = If(one & (n > 1), 1, 0)

    @m.action(g=Group, event=no_events)
    def widen(s: State, g: Elem) -> None:
        """Group g reaches back one token further."""
        s.require(s.phase == Phase.shape, IsIn(s.kind[g], Kind.window, Kind.chunked))
        s.require(s.reach[g] < limit(longest))
        forward(s, "reach", lambda h: h == g)
        s.reach[g] = s.reach[g] + 1

    @m.action(event=no_events)
    def look_further_ahead(s: State) -> None:
        """Slots are reserved for one more token that is not confirmed yet."""
        s.require(s.phase == Phase.shape, s.ahead < limit(furthest))
        s.require(ForAll(Group, lambda g: s.kind[g] != Kind.unknown))
        forward(s, "ahead", lambda g: True)
        forward(s, "end", lambda g: True)
        s.ahead = s.ahead + 1

    @m.action(event=events.begin)
    def begin(s: State) -> None:
        """All groups are described: a request writes."""
        s.require(s.phase == Phase.shape)
        s.require(ForAll(Group, lambda g: (s.kind[g] == Kind.full) | (s.reach[g] >= 1)))
        s.phase = Phase.write


def drafting(s: State) -> Expr:
    """Whether slots are reserved ahead, for speculative decoding."""
    return s.ahead > 0


def to_serve(s: State, g: Elem) -> Expr:
    """The first block that a reader of this prompt will want."""
    return If(drafting(s), s.before_need[g], s.last_need[g])


def declare_writer(m: Machine) -> None:
    """Declare the writer, token by token."""

    @m.action(event=events.write(aligned=m.faulty("aligned_window_bound")))
    def write(s: State) -> None:
        """One more token is computed, in every group."""
        s.require(s.phase == Phase.write, s.length < limit(longest))
        place = every_group_ends_a_block(s)
        s.before_blocks.update(lambda g: If(place, s.last_blocks[g], s.before_blocks[g]))
        s.before_need.update(lambda g: If(place, s.last_need[g], s.before_need[g]))
        s.before = If(place, s.last, s.before)
        s.last_blocks.update(lambda g: If(place, s.at_blocks[g], s.last_blocks[g]))
        s.last_need.update(lambda g: If(place, s.first_blocks[g], s.last_need[g]))
        s.last = If(place, s.length, s.last)
        for part in ("blocks", "offset"):
            gone, past = getattr(s, f"gone_{part}"), getattr(s, f"past_{part}")
            gone.update(lambda g, gone=gone, past=past: If(place, past[g], gone[g]))
            past.update(lambda g, past=past: If(place, 0, past[g]))
        s.gone = If(place, s.past, s.gone) + 1
        s.past = If(place, 0, s.past) + 1
        for name in ("past", "gone"):
            forward(s, name, lambda g: True)

        def full_reach(g: Elem) -> Expr:
            return And(s.since_blocks[g] == s.reach_blocks[g], s.since_offset[g] == s.reach_offset[g])

        def slides(g: Elem) -> Expr:
            return IsIn(s.kind[g], Kind.window, Kind.recurrent) & full_reach(g)

        forward(s, "at", lambda g: True)
        forward(s, "end", lambda g: True)
        s.moves.update(slides)
        forward(s, "first", lambda g: s.moves[g])
        forward(s, "since", lambda g: Not(s.moves[g]))

        def new_chunk(g: Elem) -> Expr:
            return (s.kind[g] == Kind.chunked) & full_reach(g)

        s.moves.update(new_chunk)
        s.first_blocks.update(lambda g: If(s.moves[g], s.at_blocks[g], s.first_blocks[g]))
        s.first_offset.update(lambda g: If(s.moves[g], s.at_offset[g], s.first_offset[g]))
        s.since_blocks.update(lambda g: If(s.moves[g], 0, s.since_blocks[g]))
        s.since_offset.update(lambda g: If(s.moves[g], 0, s.since_offset[g]))
        s.moves.update(lambda g: False)
        s.length = s.length + 1

    @m.action(g=Group, event=events.slide)
    def slide(s: State, g: Elem) -> None:
        """The writer lets go of its first block in group g, and puts the null block in its place."""
        s.require(s.phase == Phase.write, s.kept[g] < s.first_blocks[g])
        if not m.faulty("writer_keeps_too_little"):
            s.require(s.kept[g] < to_serve(s, g))
        s.kept[g] = s.kept[g] + 1


def read_at(s: State, g: Elem, n: Expr) -> Expr:
    """The first block that is read in group g at length n, which is one of the last places."""
    return If(n == s.last, s.last_need[g], If(n == s.before, s.before_need[g], 0))


def declare_reader(m: Machine) -> None:
    """Declare the reader: what it is promised, accepts and asks for."""

    @m.action(event=events.look_up)
    def look_up(s: State) -> None:
        """A reader asks for the same prompt: up to the last place that every group can serve."""
        s.require(s.phase == Phase.write, s.length > 0)
        serves = ForAll(Group, lambda g: s.kept[g] <= to_serve(s, g))
        if m.faulty("eagle_marks_every_group"):
            # Each group gives up its last block, and a recurrent one has only that.
            serves = serves & Not(drafting(s) & Exists(Group, lambda g: s.kind[g] == Kind.recurrent))
        whole: Expr | bool = False
        if m.faulty("promise_longer_than_acceptable"):
            whole = every_group_ends_a_block(s)
        target = If(drafting(s), s.before, s.last)
        s.hit = If(whole, s.length, If(serves, target, 0))

        def blocks(g: Elem) -> Expr:
            shorter = If(serves, If(drafting(s), s.before_blocks[g], s.last_blocks[g]), 0)
            return If(whole, s.at_blocks[g], shorter)

        s.hit_blocks.update(blocks)
        s.hit_from.update(lambda g: If(whole, s.first_blocks[g], If(serves, to_serve(s, g), 0)))
        s.check(
            "GEOMETRY", s.hit >= target, "what was written is found again as far as every group ends a block"
        )
        s.phase = Phase.promised

    @m.action(event=events.accept)
    def accept(s: State) -> None:
        """The scheduler accepts what leaves a token to compute, and counts the rest as to be computed."""
        s.require(s.phase == Phase.promised)
        clipped = s.hit == s.length
        s.hit_blocks.update(lambda g: If(clipped, s.last_blocks[g], s.hit_blocks[g]))
        s.hit = If(clipped, s.last, s.hit)
        s.check(
            "GEOMETRY",
            Implies(s.hit > 0, ForAll(Group, lambda g: s.hit_from[g] <= read_at(s, g, s.hit))),
            "what was promised covers what is read at the accepted length, in every group",
        )
        s.to_compute = s.length - s.hit
        s.phase = Phase.accepted

    @m.action(g=Group, h=Group, event=events.allocate)
    def allocate(s: State, g: Elem, h: Elem) -> None:
        """Blocks for the hit are asked for in group g, by the numbers of group h."""
        s.require(s.phase == Phase.accepted, Not(s.counted[g]))
        if not m.faulty("other_groups_block_size"):
            s.require(h == g)
        s.claim[g] = s.hit_blocks[h] if m.faulty("null_blocks_counted") else s.hit_blocks[h] - s.hit_from[h]
        s.counted[g] = True

    @m.action(event=events.leave)
    def leave(s: State) -> None:
        """The reader is done; another may come."""
        s.require(s.phase == Phase.accepted, ForAll(Group, lambda g: s.counted[g]))
        s.counted.update(lambda g: False)
        s.claim.update(lambda g: 0)
        s.hit_blocks.update(lambda g: 0)
        s.hit_from.update(lambda g: 0)
        s.hit = 0
        s.to_compute = 0
        s.phase = Phase.write


def touched(s: State, g: Elem) -> Expr:
    """Blocks from the first that is read to the last that is reserved."""
    return s.end_blocks[g] + If(s.end_offset[g] > 0, 1, 0) - s.first_blocks[g]


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("GEOMETRY")
    def what_is_kept_covers_what_the_next_token_reads(s: State) -> Expr:
        return ForAll(Group, lambda g: s.kept[g] <= s.first_blocks[g])

    @m.invariant("GEOMETRY")
    def what_is_kept_covers_what_a_reader_needs(s: State) -> Expr:
        some = If(drafting(s), s.before, s.last) > 0
        return Implies(some, ForAll(Group, lambda g: s.kept[g] <= to_serve(s, g)))

    @m.lemma
    def the_writer_keeps_what_it_has_until_something_can_be_hit(s: State) -> Expr:
        """It lets go of what is in front of the place that a reader will come to, and of nothing before."""
        return ForAll(Group, lambda g: s.kept[g] <= to_serve(s, g))

    @m.invariant("GEOMETRY")
    def the_last_place_ends_a_block_in_every_group(s: State) -> Expr:
        every_group_ends_one = ForAll(Group, lambda g: geometry_lemmas.ends_a_block(s, g, "last", "past"))
        return And(s.last + s.past == s.length, every_group_ends_one)

    @m.invariant("GEOMETRY")
    def the_place_before_ends_a_block_in_every_group(s: State) -> Expr:
        every_group_ends_one = ForAll(Group, lambda g: geometry_lemmas.ends_a_block(s, g, "before", "gone"))
        return And(s.before + s.gone == s.length, every_group_ends_one)

    def bound(s: State, g: Elem) -> Expr:
        """The most blocks that reach and lookahead together can touch, wherever they begin.

        ``n`` whole blocks and ``rest`` tokens touch ``n + 2`` when they begin with the last token of a block,
        if ``rest`` is two or more, and ``n + 1`` otherwise.
        """
        whole, rest = s.reach_blocks[g] + s.ahead_blocks[g], s.reach_offset[g] + s.ahead_offset[g]
        if m.faulty("aligned_window_bound"):
            return whole + If(rest == 0, 0, If(rest <= s.size[g], 1, 2))
        return whole + If(rest <= 1, 1, If(rest <= s.size[g] + 1, 2, 3))

    @m.invariant("GEOMETRY")
    def a_window_touches_no_more_blocks_than_its_bound(s: State) -> Expr:
        return ForAll(Group, lambda g: Implies(limited(s, g), touched(s, g) <= bound(s, g)))

    @m.invariant("GEOMETRY")
    def claims_leave_out_null_blocks_and_use_the_groups_own_size(s: State) -> Expr:
        return ForAll(Group, lambda g: Implies(s.counted[g], s.claim[g] + s.hit_from[g] == s.hit_blocks[g]))

    @m.invariant("COUNT")
    def hit_and_rest_are_the_prompt(s: State) -> Expr:
        return Implies(s.phase == Phase.accepted, s.hit + s.to_compute == s.length)

    @m.invariant("COUNT")
    def a_hit_leaves_a_token_to_compute(s: State) -> Expr:
        return Implies(s.phase == Phase.accepted, s.to_compute >= 1)

    geometry_lemmas.declare(m, Kind, Phase)


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def a_window_begins_in_the_middle_of_a_block(s: State) -> Expr:
        def more_than_aligned(g: Elem) -> Expr:
            window = (s.kind[g] == Kind.window) & (s.reach_offset[g] == 0)
            return And(window, s.first_offset[g] > 0, touched(s, g) > s.reach_blocks[g] + s.ahead_blocks[g])

        return Exists(Group, more_than_aligned)

    @m.goal
    def a_hit_leaves_out_null_blocks(s: State) -> Expr:
        return And(
            s.phase == Phase.accepted,
            Exists(Group, lambda g: And(s.counted[g], s.hit_from[g] > 0, s.kept[g] > 0)),
        )

    @m.goal
    def a_drafter_hits_where_groups_of_two_sizes_end_a_block(s: State) -> Expr:
        two = Exists(Group, Group, lambda g, h: s.size[g] != s.size[h])
        return And(s.phase == Phase.promised, drafting(s), two, s.hit > 0)

    @m.goal
    def every_kind_is_there(s: State) -> Expr:
        def some(k: Expr) -> Expr:
            return Exists(Group, lambda g: s.kind[g] == k)

        pairs = (And(some(Kind.full), some(Kind.recurrent)), And(some(Kind.chunked), some(Kind.window)))
        return And(s.phase == Phase.write, Or(*pairs))

    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("geometry", doc=__doc__, faults=faults), Group, Token, Ahead)
    declare_state(m)
    declare_groups(m)
    declare_writer(m)
    declare_reader(m)
    declare_invariants(m)
    declare_goals(m)
    return m
