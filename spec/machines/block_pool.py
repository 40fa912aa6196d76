"""A block pool: slots, ref counts with holders, the free list, the null block, and the prefix index.

Two KV-cache groups share the pool. A slot is

* the **null block**: chosen once, it pads block tables and is never given away,
* **held**: it has holders, and its ref count is the number of them, or
* **free**: the free list names it once. A free slot may keep its content key; it is then *cached*: it can be
  hit again, and it may be evicted. Eviction takes any free cached slot, so every eviction policy is covered.

An allocation is all or nothing: what all groups ask for together is compared with the pool's free count
first. A refused allocation changes nothing.
"""

from kvfence.spec import events as ev
from kvfence.spec.language import Int, Machine, Sort, State, View
from kvfence.spec.language.expr import And, Count, Elem, Exists, Expr, ForAll, If, Implies, Not, Or
from kvfence.spec.machines.state.relations import assign, declare_sorts, remove

EVICTED_FIRST = "an allocated slot carries no key: a cached slot is evicted first"


def slot(view: View, block: int) -> int:
    """The slot number of a block in traces: the null block is slot 0 there, whichever block was chosen."""
    null = next((b for b in range(len(view.null)) if view.null[b]), 0)
    return {block: block, null: 0, 0: null}[block] if block in (null, 0) else block


Block = Sort("Block", 4, __name__)
Holder = Sort("Holder", 2, __name__)
Key = Sort("Key", 2, __name__)


def free(s: State, b: Elem) -> Expr:
    """Whether the free list names the slot."""
    return s.entries[b] > 0


def held(s: State, b: Elem) -> Expr:
    """Whether the slot has a holder."""
    return Exists(Holder, lambda h: s.holds[h, b])


def cached(s: State, b: Elem) -> Expr:
    """Whether the slot has a content key."""
    return Exists(Key, lambda k: s.label[b, k])


def ready(s: State) -> Expr:
    """Whether the null block is chosen."""
    return Exists(Block, lambda b: s.null[b])


def take(s: State, h: Elem, b: Elem) -> None:
    """h joins the holders of b; a free slot leaves the free list."""
    s.nfree = If(free(s, b), s.nfree - 1, s.nfree)
    s.entries[b] = 0
    s.holds[h, b] = True
    s.ref[b] = s.ref[b] + 1


def declare_state(m: Machine) -> None:
    """Declare the fields, and the header of a path's trace."""
    m.relation("null", Block, init=False)
    m.relation("holds", Holder, Block, init=False)
    m.function("ref", Block, value=Int(0, lambda sizes: sizes["Holder"] + 1), init=0)
    m.function("entries", Block, value=Int(0, 2), init=1)  # how often the free list names the slot
    m.function("nfree", value=Int(0, lambda sizes: sizes["Block"] + 1), init=0)
    m.relation("label", Block, Key, init=False)
    m.header(
        lambda sizes: ev.Header(
            producer="kvfence machine block_pool",
            pools=(ev.Pool(name="gpu", slots=sizes["Block"], null=0),),
            tier="gpu",
        )
    )


def declare_allocation(m: Machine) -> None:
    """Declare set-up, allocation and refusal."""

    @m.action(b=Block, event=lambda pre, post, b: [])
    def reserve_null(s: State, b: Elem) -> None:
        """Set-up: slot b becomes the null block."""
        s.require(Not(ready(s)))
        assign(s, b, null=True, entries=0)
        s.nfree = Count(Block, lambda c: free(s, c))

    @m.action(
        h=Holder,
        b=Block,
        event=lambda pre, post, h, b: [ev.Alloc("gpu", f"op:{h}.0", [slot(pre, b)], free=post.nfree)],
    )
    def allocate(s: State, h: Elem, b: Elem) -> None:
        """h gets the free, unlabelled slot b."""
        s.require(ready(s), s.nfree >= 1, free(s, b), Not(cached(s, b)))
        s.check("CONSERVE", Not(cached(s, b)), EVICTED_FIRST)
        take(s, h, b)

    @m.action(
        h=Holder,
        b=Block,
        c=Block,
        event=lambda pre, post, h, b, c: [
            ev.Alloc("gpu", f"op:{h}.0", [slot(pre, b), slot(pre, c)], free=post.nfree)
        ],
    )
    def allocate_for_two_groups(s: State, h: Elem, b: Elem, c: Elem) -> None:
        """h gets slot b for one group and slot c for the other, in one allocation."""
        s.require(ready(s), b != c, free(s, b), Not(cached(s, b)), Not(s.null[c]), Not(cached(s, c)))
        if m.faulty("allocate_unchecked"):
            s.require(s.nfree >= 1, Or(free(s, c), s.nfree == 1))
        else:
            s.require(s.nfree >= 2, free(s, c))
        s.check("CONSERVE", free(s, c), "each slot that an allocation pops is in the free list")
        s.check("CONSERVE", Not(cached(s, b) | cached(s, c)), EVICTED_FIRST)
        take(s, h, b)
        take(s, h, c)

    @m.action(
        h=Holder,
        n=Int(1, 2),
        event=lambda pre, post, h, n: [ev.Deny("gpu", f"op:{h}.0", asked=n, free=pre.nfree)],
    )
    def deny(s: State, h: Elem, n: Expr) -> None:
        """h asks for n slots, fewer are free: it is told so, and nothing changes."""
        s.require(ready(s), n > s.nfree)
        s.check("CONSERVE", n > Count(Block, lambda b: free(s, b)), "only a pool that is short refuses")


def declare_sharing(m: Machine) -> None:
    """Declare how slots are shared and released, and found by their keys."""

    @m.action(
        h=Holder,
        b=Block,
        event=lambda pre, post, h, b: [ev.Touch("gpu", f"op:{h}.0", [slot(pre, b)], free=post.nfree)],
    )
    def touch(s: State, h: Elem, b: Elem) -> None:
        """A prefix hit: h joins the holders of the cached or shared slot b."""
        s.require(ready(s), Or(cached(s, b), held(s, b)), Not(s.holds[h, b]))
        take(s, h, b)

    @m.action(
        h=Holder,
        b=Block,
        c=Block,
        event=lambda pre, post, h, b, c: [
            ev.Touch("gpu", f"op:{h}.0", [slot(pre, b), slot(pre, c)], free=post.nfree)
        ],
    )
    def touch_list(s: State, h: Elem, b: Elem, c: Elem) -> None:
        """A transfer pins the two slots of its list."""
        s.require(ready(s), *(And(Or(cached(s, x), held(s, x)), Not(s.holds[h, x])) for x in (b, c)))
        if not m.faulty("duplicate_in_store_list"):
            s.require(b != c)
        s.check("UNIQUE", b != c, "a slot appears at most once in a transfer")
        take(s, h, b)
        take(s, h, c)

    @m.action(
        h=Holder,
        b=Block,
        event=lambda pre, post, h, b: [
            ev.Free("gpu", f"op:{h}.0", [slot(pre, b)] * (2 if post.entries[b] == 2 else 1), free=post.nfree)
        ],
    )
    def release(s: State, h: Elem, b: Elem) -> None:
        """h leaves slot b; without holders the slot enters the free list and keeps its key."""
        s.require(ready(s), Not(s.null[b]))
        if not m.faulty("double_release"):
            s.require(s.holds[h, b])
        s.check("CONSERVE", s.holds[h, b], "who releases a slot holds it")
        last = s.ref[b] <= 1
        times = 2 if m.faulty("over_pop") else 1
        s.entries[b] = If(last, times, s.entries[b])
        s.nfree = If(last, s.nfree + times, s.nfree)
        s.ref[b] = If(s.ref[b] > 0, s.ref[b] - 1, 0)
        s.holds[h, b] = False

    @m.action(
        h=Holder, b=Block, k=Key, event=lambda pre, post, h, b, k: [ev.Label("gpu", [slot(pre, b)], [k + 1])]
    )
    def register(s: State, h: Elem, b: Elem, k: Elem) -> None:
        """The full slot b, held by h, enters the prefix index under key k; others may have it too."""
        s.require(s.holds[h, b], Not(cached(s, b)))
        s.label[b, k] = True

    @m.action(b=Block, event=lambda pre, post, b: [ev.Evict("gpu", [slot(pre, b)])])
    def evict(s: State, b: Elem) -> None:
        """The cached slot b loses its key, so that it can be given away."""
        s.require(ready(s), cached(s, b))
        if not m.faulty("evict_pinned"):
            s.require(Not(held(s, b)))
        s.check("PIN", Not(held(s, b)), "a slot that somebody holds is not evicted")
        s.check("CONSERVE", cached(s, b), "an evicted slot carries a key")
        remove(s, b, "label")


def declare_invariants(m: Machine) -> None:
    """Declare what every reachable state satisfies."""

    @m.invariant("CONSERVE")
    def ref_count_is_the_number_of_holders(s: State) -> Expr:
        return ForAll(Block, lambda b: s.ref[b] == Count(Holder, lambda h: s.holds[h, b]))

    @m.invariant("CONSERVE")
    def free_list_names_each_slot_at_most_once(s: State) -> Expr:
        return ForAll(Block, lambda b: s.entries[b] <= 1)

    @m.invariant("CONSERVE")
    def each_slot_is_free_held_or_null(s: State) -> Expr:
        return ForAll(
            Block,
            lambda b: Implies(
                ready(s),
                Or(
                    And(s.null[b], Not(free(s, b)), Not(held(s, b))),
                    And(Not(s.null[b]), free(s, b), Not(held(s, b))),
                    And(Not(s.null[b]), Not(free(s, b)), held(s, b)),
                ),
            ),
        )

    @m.invariant("CONSERVE")
    def free_count_is_the_length_of_the_free_list(s: State) -> Expr:
        return Implies(ready(s), s.nfree == Count(Block, lambda b: free(s, b)))

    @m.invariant("UNIQUE")
    def a_slot_has_at_most_one_key(s: State) -> Expr:
        return ForAll(Block, lambda b: Count(Key, lambda k: s.label[b, k]) <= 1)


def declare_lemmas(m: Machine) -> None:
    """Declare what the proofs need besides the invariants."""

    @m.lemma
    def before_the_set_up_no_slot_is_used(s: State) -> Expr:
        """Every other action waits for the null block, or for a holder, which there is none before."""
        return ForAll(Block, lambda b: Or(ready(s), And(free(s, b), Not(held(s, b)), Not(cached(s, b)))))

    @m.lemma
    def the_null_block_has_no_key(s: State) -> Expr:
        """A key is given to a held slot, and the null block is never held."""
        return ForAll(Block, lambda b: Implies(s.null[b], Not(cached(s, b))))


def declare_goals(m: Machine) -> None:
    """Declare states that some run must reach, and changes that no invariant notices."""

    @m.goal
    def two_holders_share_a_slot(s: State) -> Expr:
        return Exists(Block, lambda b: s.ref[b] == 2)

    @m.goal
    def a_free_slot_is_cached(s: State) -> Expr:
        return Exists(Block, lambda b: And(free(s, b), cached(s, b)))

    @m.goal
    def the_pool_runs_out(s: State) -> Expr:
        return And(ready(s), s.nfree == 0)

    m.accept_mutant("evict: label is not released", "An eviction that leaves the key is no eviction.")


def build(faults: frozenset[str] = frozenset()) -> Machine:
    """The machine, with the given faults switched on (see :mod:`kvfence.spec.designs`)."""
    m = declare_sorts(Machine("block_pool", doc=__doc__, faults=faults), Block, Holder, Key)
    declare_state(m)
    declare_allocation(m)
    declare_sharing(m)
    declare_invariants(m)
    declare_lemmas(m)
    declare_goals(m)
    return m
