"""`make attacks`: generated trees, names and processes against a live agent of root's, as many as were promised.

    python -m tests.attacks --seed 7                # 10,000 cases

It needs root, and a Python that other accounts can run. Ends with 1 if anything gave way.
"""

import argparse
import random
import sys
import time

from tests.attacks.siege import BEYOND_S, a_siege
from tests.conftest import NEEDS
from tests.faults import figures
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted

CASES = 10_000
_LOOK_S = 10.0


def main() -> int:
    """Attack until so many cases were tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    if not NEEDS["root"]():
        parser.error(f"needs root, and a Python that other accounts can run (theirs would be {sys.executable})")
    print(f"seed {options.seed}", flush=True)
    with until_interrupted():
        return _attack(options.cases, options.seed)
    return EXIT_INTERRUPTED


def _attack(cases: int, seed: int) -> int:
    shown = began = time.monotonic()
    with a_siege(seed) as siege:
        tally = siege.tally
        while tally.cases < cases and not tally.wrong:
            siege.round()
            if time.monotonic() - shown > _LOOK_S:
                shown = time.monotonic()
                print(f"{tally.cases:,} of {cases:,} cases after {shown - began:.0f} s", flush=True)
    for kind, number in sorted(tally.tried.items()):
        print(f"  {number:6,} {kind}")
    for what in tally.wrong:
        print(what, file=sys.stderr)
    figures.at_least("hostile trees, names and processes", tally.cases, cases)
    figures.none("of them something gave way", len(tally.wrong))
    beyond = tally.longest_s
    figures.record("longest stop beyond its grace period, s", beyond, f"≤ {BEYOND_S:g}", held=beyond <= BEYOND_S)
    return 1 if tally.wrong or tally.cases < cases else 0


if __name__ == "__main__":
    sys.exit(main())
