"""Named designs: switches that turn a machine into a known-good or known-bad variant.

``sound`` has every switch off. Each other design switches one fault on, says which invariant must break, and
names the
public reports whose fault it states. The same names switch the same fault on in the reference implementation.
"""

from __future__ import annotations

import msgspec


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """A design: ``faults`` are the switches it turns on in ``machines``; ``breaks`` is the invariant that
    must break there.
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
        """The switches this design turns on; empty for ``sound``."""
        return frozenset() if not self.breaks else frozenset({self.name})


_ROWS = (
    Design(
        name="sound",
        summary="Every rule kept.",
        machines=(
            "block_pool",
            "lookup",
            "transfer",
            "stream_order",
            "scheduling",
            "ranks",
            "geometry",
            "loads",
            "verdicts",
            "tiers",
            "host_memory",
        ),
    ),
    # block_pool
    Design(
        name="over_pop",
        summary=(
            "A transfer's list names a slot twice, so its end puts the slot into the free list twice and "
            "the pool counts more free slots than it has."
        ),
        machines=("block_pool",),
        breaks="CONSERVE",
        reports=("vllm#42085", "vllm#42571"),
    ),
    Design(
        name="allocate_unchecked",
        summary=(
            "Two groups over one pool each compare their own demand with the pool's free count, so together"
            " they pop more than is free."
        ),
        machines=("block_pool",),
        breaks="CONSERVE",
        reports=("vllm#42085",),
    ),
    Design(
        name="double_release",
        summary=(
            "Two code paths release the same slot: it enters the free list although somebody else holds it "
            "by now."
        ),
        machines=("block_pool",),
        breaks="CONSERVE",
        reports=("sglang#13483",),
    ),
    Design(
        name="duplicate_in_store_list",
        summary=(
            "A window slides, the slot is used again by the same request, and one scan lists it twice in "
            "one transfer."
        ),
        machines=("block_pool",),
        breaks="UNIQUE",
        reports=("vllm#42571", "vllm#42085"),
    ),
    # lookup
    Design(
        name="unpinned_lookup",
        summary="The lookup promises a hit without holding its blocks until the allocation.",
        machines=("lookup",),
        breaks="PIN",
        reports=("vllm#39702",),
    ),
    Design(
        name="evict_pinned",
        summary="Eviction looks at transfers only, and takes a block that a promise pins.",
        machines=("block_pool", "lookup"),
        breaks="PIN",
        reports=("LMCache#4133",),
    ),
    Design(
        name="pins_added_not_replaced",
        summary="A repeated lookup pins its hit and keeps the pins of the promise before it.",
        machines=("lookup",),
        breaks="PURE",
        reports=("vllm#39702",),
    ),
    Design(
        name="pin_leak_on_abort",
        summary="An abort between lookup and allocation forgets the pin of the promised hit.",
        machines=("lookup",),
        breaks="NO-LEAK",
        reports=("vllm#32255",),
    ),
    Design(
        name="count_promised",
        summary="The allocation accepts fewer tokens than promised, but counts all that were promised.",
        machines=("lookup",),
        breaks="COUNT",
        reports=("vllm#45138", "LMCache#4133"),
    ),
    # transfer
    Design(
        name="duplicate_in_flight_store",
        sizes={"Host": 2},
        summary=(
            "A key counts as stored only once its store has completed, so a second request stores it again "
            "meanwhile."
        ),
        machines=("transfer",),
        breaks="UNIQUE",
        reports=("vllm#41289",),
    ),
    Design(
        name="no_flush_on_finish",
        summary=(
            "The store plan is made before the last step is counted, and finish clears the request: its "
            "last full block is never stored."
        ),
        machines=("transfer",),
        breaks="FLUSH",
        reports=("vllm#41704",),
    ),
    Design(
        name="late_flush",
        summary="The finish-time store is planned when the request's blocks have been freed already.",
        machines=("transfer",),
        breaks="FREEZE",
        reports=("vllm#48596", "vllm#42959"),
    ),
    Design(
        name="free_on_preempt",
        summary="Preemption frees the request's blocks while a store or a dispatched step still uses them.",
        machines=("transfer",),
        breaks="FREEZE",
        reports=("vllm#29870", "LMCache#4955"),
    ),
    Design(
        name="free_on_abort",
        summary="An abort frees the blocks into which a load is still being written.",
        machines=("transfer",),
        breaks="FREEZE",
        reports=("vllm#32255",),
    ),
    Design(
        name="leak_on_abort",
        summary=(
            "An abort during a load waits for a completion that was delivered before: the blocks are never "
            "freed."
        ),
        machines=("transfer",),
        breaks="NO-LEAK",
        reports=("vllm#32255",),
    ),
    Design(
        name="free_before_processed",
        summary="Blocks are freed by the optimistic token count, while the dispatched step still reads them.",
        machines=("transfer",),
        breaks="FREEZE",
        reports=("vllm#47282", "vllm#47291", "vllm#47653", "vllm#47728"),
    ),
    Design(
        name="unpinned_destination",
        summary=(
            "The CPU slots that a store writes have no holder, so the tier gives them away in the middle of"
            " the copy."
        ),
        machines=("transfer",),
        breaks="FREEZE",
        reports=("sglang#28468",),
    ),
    Design(
        name="cursor_not_rewound",
        summary="Preemption clears the block table but not the store cursor.",
        machines=("transfer",),
        breaks="CURSOR",
        reports=("vllm#52170",),
    ),
    Design(
        name="cursor_before_queue",
        summary=(
            "The store cursor moves before the store is queued; a declined store leaves a hole behind it."
        ),
        machines=("transfer",),
        breaks="CURSOR",
        reports=("vllm#27697", "vllm#42959"),
    ),
    Design(
        name="ignore_generation",
        summary="Reports are matched by operation id alone: a late one is taken for the newer operation.",
        machines=("transfer",),
        breaks="ONCE",
        reports=("vllm#54872",),
    ),
    Design(
        name="lost_completion",
        summary=(
            "The scheduler side drops an operation's record when its request ends, and ignores the real "
            "report."
        ),
        machines=("transfer",),
        breaks="ONCE",
        reports=("dynamo#3730", "dynamo#4171"),
    ),
    Design(
        name="complete_on_first_rank",
        summary="A transfer counts as complete when the first rank has reported.",
        machines=("transfer",),
        breaks="RANKS",
        reports=("vllm#21048",),
    ),
    Design(
        name="register_before_landing",
        summary="The destination of a load enters the prefix index before the load has landed.",
        machines=("transfer",),
        breaks="USE-READY",
        reports=("vllm#49250", "vllm#21048"),
    ),
    Design(
        name="keep_label_on_failure",
        summary="The destination of a failed load stays in the prefix index and is shared.",
        machines=("transfer",),
        breaks="FAIL-CLOSED",
        reports=("vllm#49250", "vllm#50388"),
    ),
    Design(
        name="reset_ignores_in_flight",
        summary="A store that was in flight across a reset registers its old key when it completes.",
        machines=("transfer",),
        breaks="RESET",
        reports=("vllm#39726",),
    ),
    Design(
        name="reset_one_tier",
        summary=(
            "A reset clears the GPU prefix index, reports success, and leaves the CPU tier serving older "
            "keys."
        ),
        machines=("transfer",),
        breaks="RESET",
        reports=("vllm#57727",),
    ),
    # stream_order
    Design(
        name="store_without_barrier",
        summary="The copy stream of a store waits for nothing, so a slot may be read while it is written.",
        machines=("stream_order",),
        breaks="STORE-READY",
        reports=("vllm#31341", "vllm#45704"),
    ),
    Design(
        name="barrier_before_compute",
        summary=(
            "The event that a store waits for is recorded when the step begins, before the kernels that "
            "write the slot are launched."
        ),
        machines=("stream_order",),
        breaks="STORE-READY",
    ),
    Design(
        name="barrier_with_any",
        summary=(
            "The copy stream waits for compute, but the store's source access order is ANY: its read is not"
            " in the order of the stream."
        ),
        machines=("stream_order",),
        breaks="STORE-READY",
        reports=("vllm#45704",),
    ),
    Design(
        name="event_reused",
        sizes={"Host": 2},
        summary=(
            "The event of a store that is still queued is used again: when the copy thread waits for it, "
            "its last record stands for another transfer."
        ),
        machines=("stream_order",),
        breaks="STORE-READY",
    ),
    Design(
        name="load_without_barrier",
        summary=(
            "The copy stream of a load waits for nothing, so kernels of the previous owner may still run."
        ),
        machines=("stream_order",),
        breaks="LOAD-ORDER",
        reports=("vllm#47282",),
    ),
    Design(
        name="zero_fill_after_load",
        summary=(
            "Fresh slots are zeroed on a stream of their own. Kernels wait for it, loads do not: the zeros "
            "of a previous owner land after the load."
        ),
        machines=("stream_order",),
        breaks="LOAD-ORDER",
        reports=("vllm#50696",),
    ),
    Design(
        name="flush_misses_queued",
        summary=(
            "A flush waits for the copy stream, and so for the stores launched by then; one that is still "
            "queued reads the slot later, when it has another owner."
        ),
        machines=("stream_order",),
        breaks="FREEZE",
        reports=("vllm#29870", "LMCache#4955"),
    ),
    Design(
        name="completion_on_wrong_stream",
        summary="A transfer counts as complete when the compute stream, not the copy stream, is found done.",
        machines=("stream_order",),
        breaks="USE-READY",
    ),
    # scheduling
    Design(
        name="head_blocks_holder",
        sizes={"Request": 2},
        summary=(
            "The scheduler stops at a head of the queue that does not fit, and never comes to promote the "
            "parked requests behind it, whose blocks the head is waiting for."
        ),
        machines=("scheduling",),
        breaks="PROGRESS",
        reports=("vllm#45388",),
    ),
    Design(
        name="blockless_head",
        sizes={"Request": 2},
        summary=(
            "Parked requests are looked at before the waiting ones, but behind a deferred one without "
            "blocks: when it does not fit, they are not promoted."
        ),
        machines=("scheduling",),
        breaks="PROGRESS",
        reports=("vllm#57841",),
    ),
    Design(
        name="fenced_victim_spin",
        sizes={"Request": 2},
        summary=(
            "A failed allocation is retried after each preemption as if its blocks came free at once; they "
            "are fenced, so one request after the other is preempted, and nobody keeps what it has "
            "computed."
        ),
        machines=("scheduling",),
        breaks="PROGRESS",
        reports=("vllm#49674",),
    ),
    Design(
        name="free_fenced_victim",
        sizes={"Request": 2},
        summary=(
            "A preempted request's blocks come free at once, so that a retry always succeeds: everybody "
            "gets on, and a step in flight still uses what was given away."
        ),
        machines=("scheduling",),
        breaks="FREEZE",
        reports=("vllm#49674", "vllm#29870"),
    ),
    Design(
        name="placeholder_not_rolled_back",
        sizes={"Request": 2},
        summary=(
            "After a failed load the computed tokens are rolled back, the placeholders of steps in flight "
            "are not: the request looks as if its last token were on its way, and is never run again."
        ),
        machines=("scheduling",),
        breaks="PROGRESS",
        reports=("vllm#45138",),
    ),
    Design(
        name="mirror_pins_starve",
        sizes={"Request": 2},
        summary=(
            "A host slot is not used again while the block that it mirrors is cached on the device: once "
            "the smaller host tier is full of mirrors, no further block is ever copied there."
        ),
        machines=("scheduling",),
        breaks="PROGRESS",
        reports=("sglang#33862",),
    ),
    Design(
        name="preempt_beside_parked",
        sizes={"Request": 2},
        summary=(
            "Only running requests count as victims: one that lacks a block preempts itself while a later "
            "one is parked with blocks, and the two take turns for ever."
        ),
        machines=("scheduling",),
        breaks="PROGRESS",
    ),
    # ranks
    Design(
        name="one_rank_enough",
        sizes={"Operation": 1},
        summary="The reports of the ranks are put together so that one rank's completion counts for all.",
        machines=("ranks",),
        breaks="RANKS",
        reports=("vllm#21048",),
    ),
    Design(
        name="decide_alone",
        sizes={"Operation": 1},
        summary=(
            "A rank that has not heard of the decision in time takes it for a commit, while the others abort."
        ),
        machines=("ranks",),
        breaks="RANKS",
    ),
    Design(
        name="repeat_counts",
        sizes={"Operation": 1},
        summary=(
            "Reports are counted, not the ranks that sent them: a repeated one stands for a rank that has "
            "not reported."
        ),
        machines=("ranks",),
        breaks="ONCE",
        reports=("vllm#21048",),
    ),
    Design(
        name="failure_after_completion",
        sizes={"Operation": 1},
        summary=(
            "The end of a copy and its failure are told by two messages, and the failure may be the later "
            "one: the operation is good by then."
        ),
        machines=("ranks",),
        breaks="FAIL-CLOSED",
        reports=("vllm#50388",),
    ),
    Design(
        name="noop_flush_on_one_rank",
        sizes={"Operation": 1},
        summary=(
            "A flush waits for the copies of all ranks but one, whose copy path it does not know: the "
            "source is given up while that rank has yet to read it."
        ),
        machines=("ranks",),
        breaks="FREEZE",
        reports=("LMCache#5248",),
    ),
    Design(
        name="dropped_leader_slot",
        sizes={"Operation": 1},
        summary=(
            "The leader drops its record of an operation when the request is done; the reports of ranks "
            "that end later find none, and the operation never completes."
        ),
        machines=("ranks",),
        breaks="ONCE",
        reports=("dynamo#3730", "dynamo#4171"),
    ),
    # geometry
    Design(
        name="aligned_window_bound",
        sizes={"Group": 1, "Token": 2},
        summary=(
            "The most blocks that a window can touch is computed as if it began with a block: one in the "
            "middle of a block touches one more."
        ),
        machines=("geometry",),
        breaks="GEOMETRY",
        reports=("vllm#48959",),
    ),
    Design(
        name="eagle_marks_every_group",
        sizes={"Group": 1, "Token": 3},
        summary=(
            "No group says that it drafts, so every group gives up its last block; a recurrent group, whose "
            "reach is one block, has nothing left."
        ),
        machines=("geometry",),
        breaks="GEOMETRY",
        reports=("vllm#52735", "vllm#52771"),
    ),
    Design(
        name="null_blocks_counted",
        sizes={"Group": 1, "Token": 2},
        summary="The null blocks that stand for what a window has let go are counted as blocks to allocate.",
        machines=("geometry",),
        breaks="GEOMETRY",
    ),
    Design(
        name="other_groups_block_size",
        sizes={"Token": 2},
        summary="The blocks of a group are counted by the block size and the window of another.",
        machines=("geometry",),
        breaks="GEOMETRY",
    ),
    Design(
        name="writer_keeps_too_little",
        sizes={"Group": 1, "Token": 2},
        summary=(
            "The writer keeps what its own next token reads; a reader, whose hit ends earlier, finds its "
            "window gone."
        ),
        machines=("geometry",),
        breaks="GEOMETRY",
    ),
    Design(
        name="promise_longer_than_acceptable",
        sizes={"Group": 1, "Token": 2},
        summary=(
            "The whole prompt is promised although a token must be left to compute; at the shorter length "
            "that is accepted the window begins earlier than what was promised."
        ),
        machines=("geometry",),
        breaks="GEOMETRY",
    ),
    # loads
    Design(
        name="block_ids_unique_only_in_group",
        sizes={"Request": 1},
        summary=(
            "A failed block is told by a number that is unique in its group only, and taken for the block "
            "of that number in another group."
        ),
        machines=("loads",),
        breaks="FAIL-CLOSED",
        reports=("vllm#50388", "vllm#56855", "vllm#47812"),
    ),
    Design(
        name="partial_load_counted_whole",
        sizes={"Group": 1, "Block": 2},
        summary="A load of which some blocks have landed is complete: it is not asked which have failed.",
        machines=("loads",),
        breaks="FAIL-CLOSED",
        reports=("LMCache#4133",),
    ),
    Design(
        name="invalid_in_one_group_only",
        sizes={"Request": 1},
        summary="After a failure a place counts as computed as long as one of the groups has its block.",
        machines=("loads",),
        breaks="FAIL-CLOSED",
        reports=("vllm#50388",),
    ),
    Design(
        name="sharer_not_rolled_back",
        sizes={"Group": 1, "Block": 2},
        summary=(
            "A failed load rolls back the request that it was for, and none of those that share its blocks."
        ),
        machines=("loads",),
        breaks="FAIL-CLOSED",
        reports=("vllm#49250",),
    ),
    Design(
        name="count_not_rolled_back",
        sizes={"Group": 1, "Block": 2},
        summary=(
            "A failed load takes back what counts as computed, and does not add it to what is to be computed."
        ),
        machines=("loads",),
        breaks="COUNT",
        reports=("vllm#45138",),
    ),
    Design(
        name="shared_before_landing",
        sizes={"Group": 1, "Block": 2},
        summary=(
            "A request whose blocks are all there runs, although the loads that fill them have not landed."
        ),
        machines=("loads",),
        breaks="USE-READY",
        reports=("vllm#49250",),
    ),
    # verdicts
    Design(
        name="unpinned_verdict",
        summary="A tier that answers later answers a hit without pinning its copy.",
        machines=("verdicts",),
        breaks="PIN",
        reports=("LMCache#4133",),
    ),
    Design(
        name="answers_by_key",
        summary=(
            "Answers are matched by the key alone: the late one of an aborted request is taken for another's."
        ),
        machines=("verdicts",),
        breaks="ONCE",
        reports=("vllm#54872",),
    ),
    Design(
        name="dropped_answer_keeps_pin",
        summary="An answer that nobody waits for is dropped, and the pin that came with it is forgotten.",
        machines=("verdicts",),
        breaks="NO-LEAK",
    ),
    Design(
        name="verdict_kept_after_failure",
        summary="A load from the tier has failed, and those who were told of a hit before still rely on it.",
        machines=("verdicts",),
        breaks="FAIL-CLOSED",
    ),
    Design(
        name="answer_on_its_way_kept",
        summary=(
            "A load from the tier has failed, and answers that are on their way still say that there is a "
            "hit."
        ),
        machines=("verdicts",),
        breaks="FAIL-CLOSED",
    ),
    # tiers
    Design(
        name="events_before_landing",
        sizes={"Operation": 1},
        summary="A key is published as stored when its store is queued, before it can be looked up.",
        machines=("tiers",),
        breaks="EVENTS",
    ),
    Design(
        name="removed_not_published",
        sizes={"Operation": 1},
        summary="An eviction is not published: subscribers go on routing requests to the tier.",
        machines=("tiers",),
        breaks="EVENTS",
    ),
    Design(
        name="reset_not_published",
        sizes={"Operation": 1},
        summary="A reset clears a tier without saying so.",
        machines=("tiers",),
        breaks="EVENTS",
    ),
    Design(
        name="lost_file_still_listed",
        sizes={"Operation": 1},
        summary="The index forgets a key whose file is lost, and subscribers are not told.",
        machines=("tiers",),
        breaks="EVENTS",
    ),
    Design(
        name="lost_file_still_found",
        sizes={"Operation": 1},
        summary="A file turns out to be lost, and the index goes on promising its key.",
        machines=("tiers",),
        breaks="FAIL-CLOSED",
        reports=("LMCache#4133",),
    ),
    Design(
        name="store_resurrects_key",
        sizes={"Operation": 1},
        summary=(
            "A store that was in flight when a reset began registers its key after the reset was answered."
        ),
        machines=("tiers",),
        breaks="RESET",
        reports=("vllm#39726",),
    ),
    Design(
        name="reset_skips_a_tier",
        sizes={"Operation": 1},
        summary="A reset is answered when one of the tiers is clear.",
        machines=("tiers",),
        breaks="RESET",
        reports=("vllm#57727",),
    ),
    Design(
        name="promotion_during_reset",
        sizes={"Operation": 1},
        summary="A key is copied from a tier that a reset has yet to clear into one that it has cleared.",
        machines=("tiers",),
        breaks="RESET",
    ),
    Design(
        name="reset_forgets_transfers",
        sizes={"Operation": 1},
        summary="A reset drops the records of transfers in flight, and with them what they hold.",
        machines=("tiers",),
        breaks="NO-LEAK",
        reports=("vllm#39726",),
    ),
    # host_memory
    Design(
        name="ranks_disagree_on_pinning",
        summary="Each rank decides by itself whether its host memory is registered.",
        machines=("host_memory",),
        breaks="HOSTMEM",
    ),
    Design(
        name="partial_registration_kept",
        summary=(
            "A rank that could not register all of its memory goes on with plain memory, and keeps the "
            "pieces that it has registered."
        ),
        machines=("host_memory",),
        breaks="HOSTMEM",
    ),
    Design(
        name="descriptor_reused_early",
        summary="A descriptor buffer is written again while a kernel may still read it.",
        machines=("host_memory",),
        breaks="HOSTMEM",
    ),
)

DESIGNS: dict[str, Design] = {row.name: row for row in _ROWS}
"""All designs by name."""
