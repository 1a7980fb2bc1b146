"""In the pool with fair shares nobody gets much less than that."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.day.evidence import Evidence
from tests.e2e.day.script import GRACE_S
from tests.e2e.day.sharing import Cut, cuts, fair

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # a day takes two minutes
POOL = "default"
AT_LEAST = 0.8


@dataclass
class Turn:
    """Of one user, from ``start`` to ``end``, in which they always wanted something: GPU-seconds."""

    user: str
    start: float
    end: float
    had: float = 0.0
    due: float = 0.0
    share: float = 0.0
    equal: float = 0.0


def turns(found: list[Cut]) -> Iterator[Turn]:
    """Every interval of demand of every user."""
    running: dict[str, Turn] = {}
    for cut in found:
        shares, due = fair(cut.capacity, cut.demand, cut.demand), cut.due()
        equal = fair(cut.capacity, cut.demand, dict.fromkeys(cut.demand, 1.0))
        wanting = {user for user, demand in cut.demand.items() if demand > 0}
        yield from [running.pop(user) for user in list(running) if user not in wanting]
        for user in wanting:
            turn = running.setdefault(user, Turn(user, cut.start, cut.end))
            turn.end = cut.end
            turn.had += cut.had[user] * cut.seconds
            turn.due += due[user] * cut.seconds
            turn.share += shares[user] * cut.seconds
            turn.equal += equal[user] * cut.seconds
    yield from running.values()


@pytest.mark.parametrize("day", ["fair-share"], indirect=True)
def test_nobody_gets_less_than_four_fifths_of_what_their_jobs_can_use_of_their_fair_share(day: Evidence) -> None:
    """GPU-seconds had >= 0.8 x what is due - grace, summed over each user's intervals of demand, and in each of them.

    `tests.e2e.day.sharing` says what demand, fair share and due are. The grace is what the largest job of the pool may
    still hold once it is asked to go: its GPUs times its grace period.
    """
    grace = GRACE_S * max(job.gpus[0] for job in day.script.jobs if job.pool in ("", POOL))
    found = list(turns(list(cuts(day, POOL))))
    totals: dict[str, Turn] = {}
    for turn in found:
        total = totals.setdefault(turn.user, Turn(turn.user, turn.start, turn.end))
        total.end, total.had, total.due = turn.end, total.had + turn.had, total.due + turn.due
        total.share, total.equal = total.share + turn.share, total.equal + turn.equal
    print(f"GPU-seconds in pool {POOL}; grace {grace:g}:")
    for user, total in sorted(totals.items()):
        share = f"fair share {total.share:.1f}, of equals {total.equal:.1f}"
        print(f"  {user}: had {total.had:.1f}, due {total.due:.1f}, {share}")
    poor = [turn for turn in [*found, *totals.values()] if turn.had < AT_LEAST * turn.due - grace]
    assert not poor, [f"{day.clock(turn.start)} to {day.clock(turn.end)}: {turn}" for turn in poor]
    assert len(totals) >= 4
