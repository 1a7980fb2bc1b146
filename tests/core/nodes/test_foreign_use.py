"""Processes of no job on GPUs: who gets no room because of them, who does all the same, and what is said of it."""

from typing import Any

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import ForeignProcess, GpuId, JobState, NodeId, SuspendMode
from ebbtide_core.nodes.foreign_use import gpu_seconds
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.explain import explain
from ebbtide_core.views.narrate import narrate

from tests.core.lab import GIB, Lab, gpus_of, registration

PYTHON = ForeignProcess(7, "alice", "python", 10 * GIB)
WAITS, STARTS = JobState.PENDING, JobState.STARTING


def use(gpu: str, *processes: ForeignProcess) -> e.ForeignUseChanged:
    return e.ForeignUseChanged(NodeId(gpu[0]), GpuId(gpu), processes)


def sharing(**changes: Any) -> Lab:
    """A node with two GPUs of 40 GiB that are offered beside foreign processes."""
    lab = Lab(nodes="")
    lab.tell(registration("a", 2, share_with_foreign=True, **changes))
    return lab


def obstacle(lab: Lab, job: Job) -> str:
    return explain(lab.cluster.state, job, lab.now).nodes[0].obstacle


def test_a_gpu_with_a_foreign_process_is_offered_to_nobody_until_that_has_left() -> None:
    lab = Lab(gpus=2)
    lab.tell(use("a0", PYTHON))
    first, second, share = lab.submit(1), lab.submit(1), lab.submit("1/4")
    assert gpus_of(first) == {"a1"}
    assert (second.state, share.state) == (WAITS, WAITS)
    lab.tell(use("a0"))
    assert gpus_of(second) == {"a0"}


def test_a_job_that_runs_there_goes_on_and_gets_no_further_neighbours() -> None:
    lab = Lab(gpus=1)
    job = lab.running("1/4")
    lab.tell(use("a0", PYTHON))
    assert job.state is JobState.RUNNING
    assert lab.submit("1/4").state is WAITS
    lab.end(job)
    assert job.queued is not None
    assert job.reason == "waiting for 1/4 GPU: GPU 0 of node a is used by alice's python (10 GiB)"


def test_room_that_is_kept_for_a_job_is_given_up_if_a_foreign_process_takes_it() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    urgent = lab.submit(1, te=True)
    assert urgent.claiming
    lab.tell(use("a0", PYTHON))
    assert not urgent.claiming
    lab.end(victim)
    assert urgent.state is WAITS
    lab.tell(use("a0"))
    assert urgent.state is STARTS


def test_who_waits_is_told_who_is_in_the_way() -> None:
    lab = Lab(gpus=2)
    lab.tell(use("a0", PYTHON, ForeignProcess(8, "bob", "jupyter", GIB)))
    lab.tell(use("a1", ForeignProcess(9, "", "", None)))
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a1"), False, "its memory was not released"))
    job = lab.submit(1)
    text = "GPU 0 of node a is used by alice's python (10 GiB) and 1 more process, and 1 more by others"
    assert job.reason == f"waiting for 1 GPU: {text}"
    assert obstacle(lab, job) == (
        "too few GPUs left; GPU 0 is used by alice's python (10 GiB) and 1 more process; "
        "GPU 1 is unusable: its memory was not released"
    )


def test_a_quarantined_gpu_is_named_with_its_reason() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1)
    lab.exit(job, e.ExitFacts())
    lab.tell(e.AttemptFreed(job.id, 1, (GpuId("a0"),)))
    waiting = lab.submit(1)
    reason = "GPU 0 is quarantined: job 1 ended, but its memory was not released"
    assert obstacle(lab, waiting) == f"too few GPUs left; {reason}"


def test_on_a_node_that_shares_a_job_fits_beside_what_the_foreign_process_has() -> None:
    lab = sharing()
    lab.tell(use("a0", PYTHON))
    lab.tell(use("a1", ForeignProcess(8, "bob", "python", 39 * GIB)))
    assert lab.submit(1).state is WAITS
    fitting = lab.submit("1/2", gpu_mem_bytes=29 * GIB, te=True)
    assert gpus_of(fitting) == {"a0"}
    assert lab.submit("1/4", te=True, gpu_mem_bytes=GIB).state is WAITS


def test_gpus_with_foreign_processes_come_last() -> None:
    lab = sharing()
    lab.tell(registration("b", 1))
    lab.tell(use("a0", PYTHON))
    jobs = [lab.submit("1/2") for _ in range(5)]
    assert [gpus_of(job) for job in jobs] == [{"b0"}, {"b0"}, {"a1"}, {"a1"}, {"a0"}]
    assert lab.submit("1/2").state is WAITS


def test_where_nobody_knows_what_a_foreign_process_has_nothing_is_offered_beside_it() -> None:
    lab = sharing()
    lab.tell(use("a0", ForeignProcess(7, "alice", "python", None)))
    assert [lab.submit("1/2").state for _ in range(3)] == [STARTS, STARTS, WAITS]


def test_a_job_in_host_memory_is_told_who_is_on_its_gpu() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, GIB))
    lab.tell(use("a0", PYTHON))
    lab.tell(e.ResumeRequested(job.id))
    where = "a0 of node a, the one that it was swapped out from"
    assert job.reason == f"waiting for GPU {where}, used by alice's python (10 GiB)"
    lab.tell(use("a0"))
    assert job.reason == "coming back to 1 GPU of node a"


def test_what_is_no_news_is_not_told() -> None:
    lab = Lab(gpus=1)
    lab.tell(use("a0", PYTHON))
    told = len(lab.journal)
    lab.tell(use("a0", ForeignProcess(7, "alice", "python", 10 * GIB + 256 * 2**20)))
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("nowhere"), (PYTHON,)))
    assert len(lab.journal) == told
    lab.tell(use("a0", ForeignProcess(7, "alice", "python", 11 * GIB)))
    lab.tell(use("a0", ForeignProcess(7, "alice", "python", None)))
    assert len(lab.journal) == told + 2


def test_foreign_gpu_seconds_are_counted_by_user_while_the_node_is_heard() -> None:
    lab = Lab(gpus=2)
    lab.tell(use("a0", PYTHON))
    lab.now += 99
    lab.tell(use("a0", PYTHON, ForeignProcess(8, "bob", "python", GIB)))
    lab.now += 9
    assert gpu_seconds(lab.cluster.state, lab.now) == {"alice": 104.5, "bob": 4.5}
    lab.tell(e.NodeDisconnected(NodeId("a")))
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    counted = gpu_seconds(lab.cluster.state, lab.now)
    lab.now += 1000
    lab.tell(registration("a", 2))
    assert gpu_seconds(lab.cluster.state, lab.now) == counted
    lab.tell(use("a0"))
    assert sum(gpu_seconds(lab.cluster.state, lab.now).values()) == sum(counted.values()) + 1


def test_a_restarted_master_knows_of_foreign_processes_and_a_rebooted_node_has_none() -> None:
    lab = Lab(gpus=1)
    lab.tell(use("a0", PYTHON))
    again = Cluster(create_policy("fitgpp", {}))
    for time, event in lab.journal:
        again.replay(decode_event(type(event).__name__, encode(event)), time)
    assert again.state.nodes[NodeId("a")].foreign[GpuId("a0")].processes == (PYTHON,)
    lab.tell(registration("a", 1))
    assert lab.submit(1).state is WAITS
    lab.tell(registration("a", 1, boot_id="boot-2"))
    assert next(iter(lab.cluster.state.jobs.values())).state is STARTS


def test_the_story_of_a_node_tells_of_foreign_processes() -> None:
    assert narrate(use("a0", PYTHON)) == "GPU a0 is used by alice's python (10 GiB), which belongs to no job"
    assert narrate(use("a0")) == "GPU a0 is used by no process but jobs' any more"
