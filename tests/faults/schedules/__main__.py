"""Run schedules: ``python -m tests.faults.schedules --count 10000 --seed 1``."""

import argparse
import json
import logging
import os
import sys
import time
from multiprocessing import get_context

from tests.faults.schedules.one import Outcome, play


def main() -> int:
    """Play them, say which failed and how to play those again, and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.schedules")
    parser.add_argument("--count", type=int, default=1, help="how many schedules")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first; the others follow it")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
        os.execve(sys.executable, [sys.executable, "-m", "tests.faults.schedules", *sys.argv[1:]],
                  os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    with get_context("fork").Pool(given.jobs) as pool:
        outcomes = list(_shown(pool.imap(play, range(given.seed, given.seed + given.count), 20), given.count))
    failed = [outcome for outcome in outcomes if outcome.failure]
    figures = {
        "schedules": len(outcomes),
        "seed": given.seed,
        "failed": [outcome.seed for outcome in failed],
        "faults": sum(outcome.faults for outcome in outcomes),
        "launches": sum(outcome.launches for outcome in outcomes),
        "simulated_s": round(sum(outcome.simulated_s for outcome in outcomes)),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures))
    return 1 if failed else 0


def _shown(outcomes: "list[Outcome]", count: int) -> "list[Outcome]":
    for number, outcome in enumerate(outcomes, start=1):
        if outcome.failure:
            print(f"seed {outcome.seed}: {outcome.failure}", file=sys.stderr)
            print(f"  again: python -m tests.faults.schedules --seed {outcome.seed}", file=sys.stderr)
        if number % 500 == 0:
            print(f"{number} of {count} schedules", file=sys.stderr)
        yield outcome


if __name__ == "__main__":
    sys.exit(main())
