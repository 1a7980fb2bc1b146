"""What nodes say of attempts that nobody gave them costs nothing, however absurd it is."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.model import limits
from ebbtide_core.model.types import GpuId, JobId, NodeId
from ebbtide_core.views.states import state_of_gpu

from tests.core.lab import Lab


def stray(job: str, attempt: int, *gpus: str) -> e.StrayFound:
    held = tuple(GpuId(gpu) for gpu in gpus)
    return e.StrayFound(node=NodeId("a"), job=JobId(job), attempt=attempt, kind=StrayKind.UNKNOWN, gpus=held)


def test_the_numbers_up_to_that_of_an_unknown_attempt_are_taken() -> None:
    lab = Lab()
    job = lab.submit(hold=True)
    lab.tell(stray(job.id, 3))
    assert len(job.attempts) == 3


def test_a_gpu_of_an_unknown_attempt_is_set_aside_and_not_idle() -> None:
    lab = Lab(gpus=2)
    node = lab.cluster.state.nodes["a"]
    lab.tell(stray("77", 1, "a0"))
    assert [state_of_gpu(node, gpu) for gpu in node.gpus] == ["quarantined", "idle"]
    lab.tell(e.StrayGone(node=node.id, job=JobId("77"), attempt=1))
    assert [state_of_gpu(node, gpu) for gpu in node.gpus] == ["idle", "idle"]


def test_a_number_that_no_attempt_can_have_is_not_counted_up_to() -> None:
    lab = Lab()
    job = lab.submit(hold=True)
    lab.tell(stray(job.id, limits.MAX_UNKNOWN_ATTEMPTS + 1))
    lab.tell(stray(job.id, 2**32 - 1))
    assert not job.attempts


@pytest.mark.parametrize("id", ["9" * 5000, "1" + "0" * 18, "x", "-1"])
def test_a_number_that_no_job_can_have_is_not_skipped_to(id: str) -> None:
    lab = Lab()
    lab.tell(stray(id, 1))
    assert lab.cluster.state.gates.next_id(lab.cluster.state.submissions) == "1"
