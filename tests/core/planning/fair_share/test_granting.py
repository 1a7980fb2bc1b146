"""Who gives way first among the jobs that were granted their sizes."""

from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.planning.fair_share.claims import SizeStep, Turn
from ebbtide_core.planning.fair_share.granting import LatestTurns
from hypothesis import given
from hypothesis import strategies as st

from tests.core.lab import Lab

STEP = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 2, 4]), st.booleans())
"""How many jobs a group lacks, its number, the GPUs of its job, and whether that stays."""


@given(st.lists(STEP, max_size=20), st.integers(0, 3), st.sampled_from([1, 2, 4, 8]))
def test_the_smaller_and_later_ones_give_way_the_last_one_first(
    steps: list[tuple[int, int, int, bool]], since: int, parts: int
) -> None:
    lab, turns, held = Lab("fair-share", nodes="a"), LatestTurns({}), dict[JobId, tuple[Turn, int]]()
    for lacks, number, size, stays in steps:
        job = lab.submit(size)
        turn = (-lacks, 0.0, number)
        turns.put(turn, SizeStep(job, size * WHOLE, has=False, grows=False))
        held[job.id] = turn, size
        if not stays:
            turns.remove(job.id)
            del held[job.id]
    asked = (-since, 0.0, 1)
    smaller = {size for _, size in held.values() if size < parts}
    found = [[(turn, job.id) for turn, job in line] for line in turns.latest_first(asked, parts * WHOLE)]
    # Of equal turns, the one that was put in first gives way first: a stable sort keeps their order.
    expected = [
        sorted(
            ((turn, id) for id, (turn, each) in held.items() if each == size and turn > asked),
            key=lambda entry: entry[0],
            reverse=True,
        )
        for size in smaller
    ]
    assert sorted(line for line in found if line) == sorted(line for line in expected if line)
