"""The sizes at which whole machines are compared with ledgers."""

SMALL = {
    "block_pool": {"Block": 3, "Holder": 2, "Key": 1},
    "lookup": {"Request": 1, "Block": 2},
    "transfer": {"Request": 1, "Block": 1, "Host": 1, "Operation": 1, "Rank": 1},
    "scheduling": {"Request": 1, "Block": 2, "Host": 1},
    "ranks": {"Operation": 1, "Rank": 2},
    "loads": {"Request": 2, "Block": 2, "Group": 1},
    "verdicts": {"Request": 1},
    "tiers": {"Operation": 1, "Part": 1},
    "host_memory": {"Operation": 2, "Piece": 1},
    "geometry": {"Group": 1, "Token": 3, "Ahead": 1},
}
NEEDED = {  # what a fault needs to show, beyond the small size
    "duplicate_in_flight_store": {"Host": 2, "Operation": 2},
    "complete_on_first_rank": {"Rank": 2},
    "free_fenced_victim": {"Request": 2},
    "answers_by_key": {"Request": 2},
    "verdict_kept_after_failure": {"Request": 2},
    "answer_on_its_way_kept": {"Request": 2},
    "partial_registration_kept": {"Piece": 2, "Operation": 1},
    "invalid_in_one_group_only": {"Request": 1, "Block": 4, "Group": 2},
    "block_ids_unique_only_in_group": {"Request": 1, "Block": 4, "Group": 2},
    "other_groups_block_size": {"Group": 2, "Token": 2},
}

FIRST = {name: SMALL[name] for name in ("block_pool", "lookup", "transfer")}
"""The machines that are compared in other ways, too."""
