"""The policies of seed 001, played out."""

import pytest
from ebbtide_core.events import AttemptExited, Event
from ebbtide_core.model.types import WHOLE
from ebbtide_core.policies.registry import create_policy
from ebbtide_sim.engine import Simulation
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

PAPER = {"min_work_s": "0", "resize_after_s": "0", "gain_restarts": "0"}


class Ends:
    """When jobs end."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def submitted(self, now: float, job: SimJob, work: float) -> None: ...

    def dropped(self, now: float, job: str, reason: str) -> None: ...

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None: ...

    def recorded(self, now: float, event: Event) -> None:
        if isinstance(event, AttemptExited):
            self.times[event.job] = now


def ends(policy: str, gpus: int, *jobs: SimJob) -> list[float]:
    """When each of ``jobs`` ends under ``policy`` on one node."""
    options = PAPER if policy.startswith("malleable") else {}
    observer = Ends()
    Simulation([SimNode(name="n", gpus=gpus)], Recorded(jobs), create_policy(policy, options), [observer]).run()
    return [observer.times[job.id] for job in jobs]


def elastic(id: str, submit_s: float, work: float, most: int) -> SimJob:
    return SimJob(id=id, submit_s=submit_s, runtime_s=work, gpus_max=most * WHOLE)


@pytest.mark.parametrize(
    ("policy", "flows"),
    [("rigid-fcfs", [2, 4]), ("moldable-equipartition", [4, 4]), ("malleable-equipartition", [4, 4])],
)
def test_the_paper_s_two_tasks_take_3_seconds_on_average_if_rigid_and_4_in_equal_shares(
    policy: str, flows: list[float]
) -> None:
    """Seed 001 §VI-A: p = 2 and v = 4 for both, on two processors."""
    assert ends(policy, 2, elastic("a", 0, 4, 2), elastic("b", 0, 4, 2)) == flows


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("moldable-equipartition", [10, 20]),  # the second has to wait: the first got both GPUs
        ("malleable-equipartition", [16, 20]),  # the first has 12 left at 4, one GPU each to 16; then 8 more on two
        ("malleable-proportional", [16, 20]),
    ],
)
def test_only_malleable_jobs_make_room(policy: str, expected: list[float]) -> None:
    assert ends(policy, 2, elastic("a", 0, 20, 2), elastic("b", 4, 20, 2)) == expected


def test_proportional_shares_end_together() -> None:
    assert ends("moldable-proportional", 8, elastic("a", 0, 60, 8), elastic("b", 0, 20, 8)) == [10, 10]
    assert ends("moldable-equipartition", 8, elastic("a", 0, 60, 8), elastic("b", 0, 20, 8)) == [15, 5]
