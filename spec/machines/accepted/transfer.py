"""How the transfer machine may be changed without an invariant noticing, and why that is no hole.

Each entry names changes as ``kvfence mutate`` prints them; ``*`` stands for any text.
"""

from kvfence.spec.language import Machine

ACCEPTED = (
    # Nothing changes, or nothing that is read again.
    ("decline_store: *guard*", "Declining changes nothing, and the cursor stays before the block."),
    ("refuse_reset: *guard*", "A refusal changes nothing."),
    ("drop: without guard not covered[r]", "What is accounted for already stays so."),
    ("late_report: without guard late[o, k]", "Without a report on its way nothing changes."),
    ("evict: without guard label[b]", "A block without a key loses none."),
    (
        "evict_from_tier: without guard resident[h]",
        "A slot that cannot be found is not found afterwards either.",
    ),
    ("evict_from_tier: resident*", "An eviction that leaves the slot to be found is no eviction."),
    (
        "abort: status: gone -> waiting",
        "A waiting request holds nothing; one that stays is as before its abort.",
    ),
    ("complete: computed: without status*", "The tokens of an aborted request are not read again."),
    # The same, earlier: two steps of the machine in one.
    ("queue_*: state: queued -> issued", "An operation may be handed to the workers when it is queued."),
    (
        "admit_by_load: state: queued -> issued",
        "An operation may be handed to the workers when it is queued.",
    ),
    ("*: status: running -> finishing", "All tokens are confirmed, so that finish may follow at once."),
    ("retire: without guard (status*", "Between finish and retire only the status differs, once covered."),
    # A copy or a key less is a miss: the request computes.
    ("process: label: without label[i0]", "A key that is lost is a miss."),
    ("complete: label*", "A key that is lost is a miss."),
    ("evict: label: as if always*", "A key that is lost is a miss."),
    ("complete: resident: without resident[i0]", "A copy that is lost is a miss."),
    (
        "complete_failed: without guard failed[o]",
        "A success taken for a failure costs a copy and a computation.",
    ),
    (
        "report_failure: without guard load[o]",
        "A store that fails lets go of what it holds and registers nothing.",
    ),
    # A request that starts again has given up its table, and what is in flight keeps its blocks.
    (
        "preempt: without guard status[r]*",
        "In another status a preemption takes the table and starts again, too.",
    ),
    (
        "complete*: status: without status*",
        "A request whose abort is forgotten runs on and can be aborted again.",
    ),
    # Marks that only bound a run, or name holders in traces.
    (
        "preempt: without guard gen[r] == 0",
        "One preemption is enough to look at: the generation bounds them.",
    ),
    ("preempt: gen: as if always*", "The generation names holders in traces and bounds the preemptions."),
    ("reset: without guard not was_reset", "One reset is enough to look at: the mark bounds them."),
    ("reset: was_reset*", "One reset is enough to look at: the mark bounds them."),
    (
        "repeat: without guard not late[o, k]",
        "Of two late reports of a rank the machine keeps the newer one.",
    ),
    # Beyond this machine: it does not say what a CPU slot contains, nor which rank has failed.
    (
        "complete_failed: resident*",
        "A CPU slot has no content here; what may be found again is judged on traces.",
    ),
    (
        "complete: resident: without not load[o]",
        "A load that succeeded proves its source good, which is found again.",
    ),
    ("complete*: failed: as if always i0 == o", "Whose report was a failure is judged on traces, by rank."),
)


def declare(m: Machine) -> None:
    """Add the acceptances to the machine."""
    m.ghost("good", why="What a block contains is a fact; the machine marks it where the key is.")
    for mutant, why in ACCEPTED:
        m.accept_mutant(mutant, why)
    m.accept_idle(
        "a_request_never_loads_and_stores_at_once",
        "There is one content key: a store is open only while the tier lacks it, and a load begins only when "
        "the tier has it.",
    )
