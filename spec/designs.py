"""Named designs: switches that turn a machine into a known-good or known-bad variant.

``sound`` has every switch off. Each other design switches one fault on, says which invariant must break, and
names the public reports whose fault it states. The same names switch the same fault on in the reference
implementation.
"""

from __future__ import annotations

import msgspec


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """A design: ``faults`` are the switches that it turns on in ``machines``, which break an invariant there.

    ``breaks`` is the id of that invariant; ``sound`` breaks none.
    """

    name: str
    summary: str
    machines: tuple[str, ...] = ()
    breaks: str = ""
    sizes: dict[str, int] = {}
    """Sort sizes at which the fault shows, where the machine's own are too small or larger than need be."""
    reports: tuple[str, ...] = ()

    @property
    def faults(self) -> frozenset[str]:
        """The switches that this design turns on; empty for ``sound``."""
        return frozenset() if not self.breaks else frozenset({self.name})


_FAULTY = {
    # By machine: the name of the design, the invariant that it breaks, the reports, and what goes wrong.
    "block_pool": {
        "over_pop CONSERVE vllm#42085 vllm#42571": (
            "A transfer's list names a slot twice, so its end puts the slot into the free list twice and the "
            "pool counts more free slots than it has."
        ),
        "allocate_unchecked CONSERVE vllm#42085": (
            "Two groups over one pool each compare their own demand with the pool's free count, so together "
            "they pop more than is free."
        ),
        "double_release CONSERVE sglang#13483": (
            "Two code paths release the same slot: it enters the free list although somebody else holds it "
            "by now."
        ),
        "duplicate_in_store_list UNIQUE vllm#42571 vllm#42085": (
            "A window slides, the slot is used again by the same request, and one scan lists it twice in one "
            "transfer."
        ),
    },
    "lookup": {
        "unpinned_lookup PIN vllm#39702": (
            "The lookup promises a hit without holding its blocks until the allocation."
        ),
        "evict_pinned PIN LMCache#4133": (
            "Eviction looks at transfers only, and takes a block that a promise pins."
        ),
        "pins_added_not_replaced PURE vllm#39702": (
            "A repeated lookup pins its hit and keeps the pins of the promise before it."
        ),
        "pin_leak_on_abort NO-LEAK vllm#32255": (
            "An abort between lookup and allocation forgets the pin of the promised hit."
        ),
        "count_promised COUNT vllm#45138 LMCache#4133": (
            "The allocation accepts fewer tokens than promised, but counts all that were promised."
        ),
    },
    "transfer": {
        "duplicate_in_flight_store UNIQUE vllm#41289": (
            "A key counts as stored only once its store has completed, so a second request stores it again "
            "meanwhile."
        ),
        "no_flush_on_finish FLUSH vllm#41704": (
            "The store plan is made before the last step is counted, and finish clears the request: its last "
            "full block is never stored."
        ),
        "late_flush FREEZE vllm#48596 vllm#42959": (
            "The finish-time store is planned when the request's blocks have been freed already."
        ),
        "free_on_preempt FREEZE vllm#29870 LMCache#4955": (
            "Preemption frees the request's blocks while a store or a dispatched step still uses them."
        ),
        "free_on_abort FREEZE vllm#32255": (
            "An abort frees the blocks into which a load is still being written."
        ),
        "leak_on_abort NO-LEAK vllm#32255": (
            "An abort during a load waits for a completion that was delivered before: the blocks are never "
            "freed."
        ),
        "free_before_processed FREEZE vllm#47282 vllm#47291 vllm#47653 vllm#47728": (
            "Blocks are freed by the optimistic token count, while the dispatched step still reads them."
        ),
        "unpinned_destination FREEZE sglang#28468": (
            "The CPU slots that a store writes have no holder, so the tier gives them away in the middle of "
            "the copy."
        ),
        "cursor_not_rewound CURSOR vllm#52170": "Preemption clears the block table but not the store cursor.",
        "cursor_before_queue CURSOR vllm#27697 vllm#42959": (
            "The store cursor moves before the store is queued; a declined store leaves a hole behind it."
        ),
        "ignore_generation ONCE vllm#54872": (
            "Reports are matched by operation id alone: a late one is taken for the newer operation."
        ),
        "lost_completion ONCE dynamo#3730 dynamo#4171": (
            "The scheduler side drops an operation's record when its request ends, and ignores the real "
            "report."
        ),
        "complete_on_first_rank RANKS vllm#21048": (
            "A transfer counts as complete when the first rank has reported."
        ),
        "register_before_landing USE-READY vllm#49250 vllm#21048": (
            "The destination of a load enters the prefix index before the load has landed."
        ),
        "keep_label_on_failure FAIL-CLOSED vllm#49250 vllm#50388": (
            "The destination of a failed load stays in the prefix index and is shared."
        ),
        "reset_ignores_in_flight RESET vllm#39726": (
            "A store that was in flight across a reset registers its old key when it completes."
        ),
        "reset_one_tier RESET vllm#57727": (
            "A reset clears the GPU prefix index, reports success, and leaves the CPU tier serving older "
            "keys."
        ),
    },
    "stream_order": {
        "store_without_barrier STORE-READY vllm#31341 vllm#45704": (
            "The copy stream of a store waits for nothing, so a slot may be read while it is written."
        ),
        "barrier_before_compute STORE-READY": (
            "The event that a store waits for is recorded when the step begins, before the kernels that "
            "write the slot are launched."
        ),
        "barrier_with_any STORE-READY vllm#45704": (
            "The copy stream waits for compute, but the store's source access order is ANY: its read is not "
            "in the order of the stream."
        ),
        "event_reused STORE-READY": (
            "The event of a store that is still queued is used again: when the copy thread waits for it, its "
            "last record stands for another transfer."
        ),
        "load_without_barrier LOAD-ORDER vllm#47282": (
            "The copy stream of a load waits for nothing, so kernels of the previous owner may still run."
        ),
        "zero_fill_after_load LOAD-ORDER vllm#50696": (
            "Fresh slots are zeroed on a stream of their own. Kernels wait for it, loads do not: the zeros "
            "of a previous owner land after the load."
        ),
        "flush_misses_queued FREEZE vllm#29870 LMCache#4955": (
            "A flush waits for the copy stream, and so for the stores launched by then; one that is still "
            "queued reads the slot later, when it has another owner."
        ),
        "completion_on_wrong_stream USE-READY": (
            "A transfer counts as complete when the compute stream, not the copy stream, is found done."
        ),
    },
    "scheduling": {
        "head_blocks_holder PROGRESS vllm#45388": (
            "The scheduler stops at a head of the queue that does not fit, and never comes to promote the "
            "parked requests behind it, whose blocks the head is waiting for."
        ),
        "blockless_head PROGRESS vllm#57841": (
            "Parked requests are looked at before the waiting ones, but behind a deferred one without "
            "blocks: when it does not fit, they are not promoted."
        ),
        "fenced_victim_spin PROGRESS vllm#49674": (
            "A failed allocation is retried after each preemption as if its blocks came free at once; they "
            "are fenced, so one request after the other is preempted, and nobody keeps what it has computed."
        ),
        "free_fenced_victim FREEZE vllm#49674 vllm#29870": (
            "A preempted request's blocks come free at once, so that a retry always succeeds: everybody gets "
            "on, and a step in flight still uses what was given away."
        ),
        "placeholder_not_rolled_back PROGRESS vllm#45138": (
            "After a failed load the computed tokens are rolled back, the placeholders of steps in flight "
            "are not: the request looks as if its last token were on its way, and is never run again."
        ),
        "mirror_pins_starve PROGRESS sglang#33862": (
            "A host slot is not used again while the block that it mirrors is cached on the device: once the "
            "smaller host tier is full of mirrors, no further block is ever copied there."
        ),
        "preempt_beside_parked PROGRESS": (
            "Only running requests count as victims: one that lacks a block preempts itself while a later "
            "one is parked with blocks, and the two take turns for ever."
        ),
    },
    "ranks": {
        "one_rank_enough RANKS vllm#21048": (
            "The reports of the ranks are put together so that one rank's completion counts for all."
        ),
        "decide_alone RANKS": (
            "A rank that has not heard of the decision in time takes it for a commit, while the others abort."
        ),
        "repeat_counts ONCE vllm#21048": (
            "Reports are counted, not the ranks that sent them: a repeated one stands for a rank that has "
            "not reported."
        ),
        "failure_after_completion FAIL-CLOSED vllm#50388": (
            "The end of a copy and its failure are told by two messages, and the failure may be the later "
            "one: the operation is good by then."
        ),
        "noop_flush_on_one_rank FREEZE LMCache#5248": (
            "A flush waits for the copies of all ranks but one, whose copy path it does not know: the source "
            "is given up while that rank has yet to read it."
        ),
        "dropped_leader_slot ONCE dynamo#3730 dynamo#4171": (
            "The leader drops its record of an operation when the request is done; the reports of ranks that "
            "end later find none, and the operation never completes."
        ),
    },
    "geometry": {
        "aligned_window_bound GEOMETRY vllm#48959": (
            "The most blocks that a window can touch is computed as if it began with a block: one in the "
            "middle of a block touches one more."
        ),
        "eagle_marks_every_group GEOMETRY vllm#52735 vllm#52771": (
            "No group says that it drafts, so every group gives up its last block; a recurrent group, whose "
            "reach is one block, has nothing left."
        ),
        "null_blocks_counted GEOMETRY": (
            "The null blocks that stand for what a window has let go are counted as blocks to allocate."
        ),
        "other_groups_block_size GEOMETRY": (
            "The blocks of a group are counted by the block size and the window of another."
        ),
        "writer_keeps_too_little GEOMETRY": (
            "The writer keeps what its own next token reads; a reader, whose hit ends earlier, finds its "
            "window gone."
        ),
        "promise_longer_than_acceptable GEOMETRY": (
            "The whole prompt is promised although a token must be left to compute; at the shorter length "
            "that is accepted the window begins earlier than what was promised."
        ),
    },
    "loads": {
        "block_ids_unique_only_in_group FAIL-CLOSED vllm#50388 vllm#56855 vllm#47812": (
            "A failed block is told by a number that is unique in its group only, and taken for the block of "
            "that number in another group."
        ),
        "partial_load_counted_whole FAIL-CLOSED LMCache#4133": (
            "A load of which some blocks have landed is complete: it is not asked which have failed."
        ),
        "invalid_in_one_group_only FAIL-CLOSED vllm#50388": (
            "After a failure a place counts as computed as long as one of the groups has its block."
        ),
        "sharer_not_rolled_back FAIL-CLOSED vllm#49250": (
            "A failed load rolls back the request that it was for, and none of those that share its blocks."
        ),
        "count_not_rolled_back COUNT vllm#45138": (
            "A failed load takes back what counts as computed, and does not add it to what is to be computed."
        ),
        "shared_before_landing USE-READY vllm#49250": (
            "A request whose blocks are all there runs, although the loads that fill them have not landed."
        ),
    },
    "verdicts": {
        "unpinned_verdict PIN LMCache#4133": (
            "A tier that answers later answers a hit without pinning its copy."
        ),
        "answers_by_key ONCE vllm#54872": (
            "Answers are matched by the key alone: the late one of an aborted request is taken for another's."
        ),
        "dropped_answer_keeps_pin NO-LEAK": (
            "An answer that nobody waits for is dropped, and the pin that came with it is forgotten."
        ),
        "verdict_kept_after_failure FAIL-CLOSED": (
            "A load from the tier has failed, and those who were told of a hit before still rely on it."
        ),
        "answer_on_its_way_kept FAIL-CLOSED": (
            "A load from the tier has failed, and answers that are on their way still say that there is a "
            "hit."
        ),
    },
    "tiers": {
        "events_before_landing EVENTS": (
            "A key is published as stored when its store is queued, before it can be looked up."
        ),
        "removed_not_published EVENTS": (
            "An eviction is not published: subscribers go on routing requests to the tier."
        ),
        "reset_not_published EVENTS": "A reset clears a tier without saying so.",
        "lost_file_still_listed EVENTS": (
            "The index forgets a key whose file is lost, and subscribers are not told."
        ),
        "lost_file_still_found FAIL-CLOSED LMCache#4133": (
            "A file turns out to be lost, and the index goes on promising its key."
        ),
        "store_resurrects_key RESET vllm#39726": (
            "A store that was in flight when a reset began registers its key after the reset was answered."
        ),
        "reset_skips_a_tier RESET vllm#57727": "A reset is answered when one of the tiers is clear.",
        "promotion_during_reset RESET": (
            "A key is copied from a tier that a reset has yet to clear into one that it has cleared."
        ),
        "reset_forgets_transfers NO-LEAK vllm#39726": (
            "A reset drops the records of transfers in flight, and with them what they hold."
        ),
    },
    "host_memory": {
        "ranks_disagree_on_pinning HOSTMEM": (
            "Each rank decides by itself whether its host memory is registered."
        ),
        "partial_registration_kept HOSTMEM": (
            "A rank that could not register all of its memory goes on with plain memory, and keeps the "
            "pieces that it has registered."
        ),
        "descriptor_reused_early HOSTMEM": (
            "A descriptor buffer is written again while a kernel may still read it."
        ),
    },
}
_ALSO_IN = {"evict_pinned": "block_pool"}
"""The first of the two machines that state a fault, where there are two."""

_SIZES: dict[str, dict[str, int]] = {
    # By design, or for all designs of a machine that are not named themselves.
    "duplicate_in_flight_store": {"Host": 2},
    "event_reused": {"Host": 2},
    "scheduling": {"Request": 2},
    "ranks": {"Operation": 1},
    "geometry": {"Group": 1, "Token": 2},
    "eagle_marks_every_group": {"Group": 1, "Token": 3},
    "other_groups_block_size": {"Token": 2},
    "loads": {"Group": 1, "Block": 2},
    "block_ids_unique_only_in_group": {"Request": 1},
    "invalid_in_one_group_only": {"Request": 1},
    "tiers": {"Operation": 1},
}


def _faulty(machine: str, key: str, summary: str) -> Design:
    """The design of one entry of ``_FAULTY``."""
    name, breaks, *reports = key.split()
    return Design(
        name=name,
        summary=summary,
        machines=(_ALSO_IN[name], machine) if name in _ALSO_IN else (machine,),
        breaks=breaks,
        sizes=_SIZES.get(name, _SIZES.get(machine, {})),
        reports=tuple(reports),
    )


_SOUND = Design(name="sound", summary="Every rule kept.", machines=tuple(_FAULTY))
_ALL = (_SOUND, *(_faulty(machine, *row) for machine, rows in _FAULTY.items() for row in rows.items()))

DESIGNS: dict[str, Design] = {design.name: design for design in _ALL}
"""All designs by name."""
