"""Order rules on a GPU: breaking each corrupts content in at least 99 of 100 trials, obeying it in none.

    python bench/race_controls.py [--trials N] [--output FOLDER]

A rule whose broken form does not corrupt is undetermined on this device: its trials say nothing.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from _cuda import driver_or_exit, facts, heading
from _measure import RESULTS, arguments, save_of_card, table

from kvfence.reference.device.cuda_faults import RULES, Arena, engines_on_trial, try_rule


def main() -> int:
    """Exit code: 0 when every certain rule holds, 1 when obeying one corrupts, 3 when one is undetermined."""
    parser = arguments(__doc__, output="folder for the results", default=RESULTS)
    parser.add_argument("--trials", type=int, default=1000, help="of each rule, broken and obeyed")
    asked = parser.parse_args()
    driver = driver_or_exit()
    found: dict[str, Any] = {**facts(driver), "trials": []}
    for engine in engines_on_trial(driver).values():
        arena = Arena(driver, engine)
        for name, rule in RULES.items():
            outcome = try_rule(arena, rule, asked.trials)
            found["trials"].append({
                "engine": engine.name, "rule": name, "invariant": rule.invariant, "certain": rule.certain,
                **asdict(outcome), "verdict": outcome.verdict,
            })  # fmt: skip
        arena.close()
    columns = ("engine", "rule", "invariant", "trials", "broken_corrupt", "obeyed_corrupt", "verdict")
    rows = [[r[column] for column in columns] for r in found["trials"]]
    head = ["engine", "rule", "invariant", "trials each", "broken: corrupt", "obeyed: corrupt", "verdict"]
    text = heading("Order rules on a GPU", found) + "\n" + table(head, rows)
    save_of_card(asked.output, "race_controls", found, text)
    verdicts = {r["verdict"] for r in found["trials"] if r["certain"]}
    if "violated" in {r["verdict"] for r in found["trials"]}:
        return 1
    return 3 if "undetermined" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
