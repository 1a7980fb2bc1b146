"""GPU memory: what earlier runs used is given, what is overrun is raised, and who runs out of it is run alone once."""

from dataclasses import replace
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Launch, Stop
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.job.facets import GpuMemory
from ebbtide_core.job.job import Job
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ExitFacts, GpuFacts, GpuId, HeldBy, JobId, JobState, StopCause, SuspendMode
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.narrate import narrate

from tests.core.lab import GIB, Lab, registration, stepped_aside

MIB = 2**20
QUARTER = WHOLE // 4


def used(peak: float, **facts: Any) -> ExitFacts:
    """The end of an attempt that used so many GiB."""
    return ExitFacts(gpu_mem_peak_bytes=int(peak * GIB), **facts)


OUT_OF_MEMORY = ExitFacts(exit_code=1, out_of_memory=True)


def overrun(lab: Lab, job: Job, gib: float, allowed: float = 10, attempt: int | None = None) -> list[Any]:
    """The job's node says that it uses so many GiB."""
    number = attempt or len(job.attempts)
    gpu = job.attempts[number - 1].allocation.gpu_ids[0]
    return lab.tell(e.MemoryOverran(job.id, number, gpu, int(gib * GIB), int(allowed * GIB)))


def learned(lab: Lab, user: str = "ann", **spec: Any) -> e.GpuMemoryChanged | None:
    """What a new job would be given."""
    fields = {"command": ("x",), "workdir": "/", "gpus_min": QUARTER, "gpus_max": QUARTER} | spec
    asked = JobSpec(**fields)
    job = Job(JobId("9"), asked, user, 0.0, 0, asked.gpus_min, asked.gpus_max)
    job.gpu_memory = GpuMemory(asked.gpu_mem_bytes)
    return gpu_memory.learned_request(lab.cluster.state, job)


def run(lab: Lab, peak: float, gpus: float | str = "1/4", exit_code: int = 0, seconds: float = 60) -> None:
    """A run of the script from its start to its end."""
    job = lab.running(gpus)
    lab.wait(seconds)
    lab.end(job, used(peak, exit_code=exit_code))


def held(job: Job) -> tuple[int, int]:
    """The share and memory of the GPU that the job has."""
    [node] = job.attempts[-1].allocation.nodes
    [piece] = node.gpus
    return piece.share, piece.mem_bytes


def told(lab: Lab) -> list[str]:
    """The journal in words."""
    return [narrate(event) for _, event in lab.journal]


# --- what earlier runs used ---


@pytest.mark.parametrize(
    ("used_bytes", "asked_bytes"),
    [(1, 256 * MIB), (232 * MIB, 256 * MIB), (233 * MIB, 512 * MIB), (10 * GIB, 11 * GIB), (600 * MIB, 768 * MIB)],
)
def test_a_request_is_a_tenth_more_than_what_was_used_in_steps_of_256_mib(used_bytes: int, asked_bytes: int) -> None:
    assert gpu_memory.request_for(used_bytes) == asked_bytes


def test_the_first_run_of_a_script_gets_its_share_and_the_second_what_the_first_used() -> None:
    lab = Lab()
    assert learned(lab) is None
    run(lab, 4)
    needs = learned(lab)
    assert needs is not None
    assert (needs.mem_bytes, needs.reason) == (int(4.5 * GIB), "from its last run")


def test_the_most_that_one_of_the_last_five_runs_used_counts() -> None:
    lab = Lab()
    run(lab, 20)
    for peak in (3, 5, 4, 3, 2):
        run(lab, peak)
    needs = learned(lab)
    assert needs is not None
    assert (needs.mem_bytes, needs.reason) == (int(5.5 * GIB), "from its last 5 runs")


@pytest.mark.parametrize(
    "spec",
    [
        {"gpu_mem_bytes": GIB},
        {"gpus_min": WHOLE, "gpus_max": WHOLE},
        {"gpus_min": 0, "gpus_max": 0},
        {"name": "other"},
        {"user": "bob"},
    ],
)
def test_who_names_its_memory_or_asks_for_whole_gpus_or_has_another_script_learns_nothing(spec: dict[str, Any]) -> None:
    lab = Lab()
    run(lab, 4)
    assert learned(lab, **spec) is None


def test_a_run_on_a_whole_gpu_teaches_and_one_on_several_does_not() -> None:
    lab = Lab()
    run(lab, 4, gpus=2)
    assert learned(lab) is None
    run(lab, 30, gpus=1)
    needs = learned(lab)
    assert needs is not None
    assert needs.mem_bytes == 33 * GIB


def test_a_run_that_failed_teaches_only_that_more_is_needed() -> None:
    lab = Lab()
    run(lab, 0.3, exit_code=1)
    assert learned(lab) is None
    run(lab, 4)
    run(lab, 0.3, exit_code=1)
    needs = learned(lab)
    assert needs is not None
    assert needs.reason == "from its last run"
    run(lab, 6, exit_code=1)
    needs = learned(lab)
    assert needs is not None
    assert (needs.mem_bytes, needs.reason) == (int(6.75 * GIB), "from its last 2 runs")


def test_a_run_that_was_too_short_to_be_looked_at_properly_teaches_only_that_more_is_needed() -> None:
    lab = Lab()
    run(lab, 0.3, seconds=1)
    assert learned(lab) is None
    run(lab, 4)
    run(lab, 6, seconds=1)
    needs = learned(lab)
    assert needs is not None
    assert needs.mem_bytes == int(6.75 * GIB)


def test_nobody_is_given_more_than_the_largest_gpu_has() -> None:
    lab = Lab()
    run(lab, 39, gpus=1)
    needs = learned(lab)
    assert needs is not None
    assert needs.mem_bytes == 40 * GIB


def test_a_peak_of_an_attempt_that_stepped_aside_counts_for_its_job() -> None:
    lab = Lab()
    job = lab.running("1/4")
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, stepped_aside(gpu_mem_peak_bytes=8 * GIB))
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    lab.wait(60)
    lab.end(job, used(1))
    assert job.gpu_memory.peak_bytes == 8 * GIB
    needs = learned(lab)
    assert needs is not None
    assert needs.mem_bytes == 9 * GIB


def test_more_jobs_fit_on_a_gpu_by_memory_once_it_is_known_what_they_need() -> None:
    lab = Lab(gpus=1)
    run(lab, 20)
    jobs = [lab.submit("1/4", hold=True) for _ in range(2)]
    for job in jobs:
        needs = gpu_memory.learned_request(lab.cluster.state, job)
        assert needs is not None
        lab.tell(needs)
        lab.tell(e.ReleaseRequested(job.id))
    assert [job.state for job in jobs] == [JobState.STARTING, JobState.PENDING]  # 22 GiB of 40 each
    assert held(jobs[0]) == (QUARTER, 22 * GIB)


@pytest.mark.parametrize("policy", ["fifo", "rigid-fcfs", "malleable-equipartition"])
def test_a_job_that_waits_may_learn_what_it_needs_wherever_it_stands_in_the_queue(policy: str) -> None:
    lab = Lab(policy, gpus=1)
    blocking = lab.running(1, suspend=SuspendMode.NONE)
    jobs = [lab.submit("1/4") for _ in range(3)]
    lab.tell(e.GpuMemoryChanged(jobs[1].id, 3 * GIB, QUARTER, QUARTER, "from its last run"))
    lab.end(blocking, ExitFacts())
    assert all(job.state is JobState.STARTING for job in jobs)
    assert held(jobs[1])[1] == 3 * GIB


def test_a_finished_job_needs_nothing_any_more() -> None:
    lab = Lab()
    job = lab.running("1/4")
    lab.end(job, ExitFacts())
    assert lab.tell(e.GpuMemoryChanged(job.id, GIB, QUARTER, QUARTER, "")) == []


# --- more than it was given ---


def test_whoever_uses_too_much_is_suspended_and_goes_on_with_more_and_its_neighbours_notice_nothing() -> None:
    lab = Lab(gpus=1)
    hungry, neighbour = lab.running("1/4"), lab.running("1/4")
    commands = overrun(lab, hungry, 20)
    assert [(command.job, command.grace_s) for command in commands if isinstance(command, Stop)] == [(hungry.id, 180.0)]
    assert hungry.state is JobState.SUSPENDING
    assert hungry.reason == "uses 20 GiB of GPU memory, 10 GiB were given to it; it resumes with 22 GiB"
    lab.end(hungry)
    lab.start(hungry)
    assert held(hungry) == (QUARTER, 22 * GIB)
    assert (hungry.gpu_memory.requested_bytes, hungry.gpu_memory.changed_because) == (
        22 * GIB,
        "it used 20 GiB in attempt 1",
    )
    assert (hungry.spec.gpu_mem_bytes, hungry.retries.failures, hungry.suspending.preemptions) == (0, 0, 0)
    assert (neighbour.state, len(neighbour.attempts), neighbour.attempts[-1].stop) == (JobState.RUNNING, 1, None)
    assert "attempt 1 uses 20 GiB of GPU memory, 10 GiB were given to it (GPU a0)" in told(lab)
    assert "needs 22 GiB of GPU memory: it used 20 GiB in attempt 1" in told(lab)


def test_it_waits_where_what_it_needs_does_not_fit() -> None:
    lab = Lab(gpus=1)
    hungry, *others = [lab.running("1/4") for _ in range(3)]
    overrun(lab, hungry, 20)
    lab.end(hungry)
    assert (hungry.state, hungry.reason) == (JobState.SUSPENDED, "waiting for 1/4 GPU with 22 GiB")
    lab.end(others[0], ExitFacts())
    assert hungry.state is JobState.STARTING


def test_an_overrun_that_is_reported_again_and_again_changes_nothing() -> None:
    lab = Lab()
    job = lab.running("1/4")
    overrun(lab, job, 20)
    before = len(lab.journal)
    for gib in (20, 25, 20):
        assert overrun(lab, job, gib) == []
    lab.end(job)
    assert overrun(lab, job, 30, attempt=1) == []
    lab.start(job)
    assert overrun(lab, job, 30, attempt=1) == []
    assert (len(job.attempts), job.gpu_memory.overruns, job.gpu_memory.requested_bytes) == (2, 1, 22 * GIB)
    assert len(lab.journal) == before + 5  # exited, unsaved, freed, placed, started


@pytest.mark.parametrize(("gib", "times"), [(39, 1), (12, 2)])
def test_it_gets_a_gpu_of_its_own_if_no_other_has_room_or_it_does_it_again(gib: float, times: int) -> None:
    lab = Lab()
    job = lab.running("1/4")
    for number in range(times):
        overrun(lab, job, gib + number, 10)
        assert job.reason.endswith("a GPU of its own") == (number == times - 1)
        lab.end(job)
        lab.start(job)
    assert held(job) == (WHOLE, 40 * GIB)
    assert (job.gpus_min, job.gpus_max, job.attempts[-1].stop) == (WHOLE, WHOLE, None)
    assert any(" of GPU memory and a GPU of its own: it used " in line for line in told(lab))
    assert overrun(lab, job, 40) == []  # it is nobody's memory but its own


def test_an_elastic_job_keeps_the_sizes_that_are_whole() -> None:
    lab = Lab()
    blocking = lab.running(3)
    job = lab.running("1/4", 2)
    assert job.attempts[-1].allocation.share == WHOLE
    filling = lab.submit("1/4", te=True)
    lab.settle()
    assert (filling.state, job.attempts[-1].allocation.share) == (JobState.RUNNING, WHOLE // 2)
    overrun(lab, job, 39, 20)
    assert (job.gpus_min, job.gpus_max) == (WHOLE, 2 * WHOLE)
    lab.end(filling, ExitFacts())
    lab.end(blocking, ExitFacts())
    lab.settle()
    assert job.attempts[-1].allocation.share >= WHOLE


def test_a_job_that_cannot_be_suspended_is_ended_and_has_failed_whatever_its_retries() -> None:
    lab = Lab()
    job = lab.running("1/4", suspend=SuspendMode.NONE, retries=3)
    overrun(lab, job, 20)
    assert job.state is JobState.STOPPING
    lab.end(job, ExitFacts(signal=15, stop_requested=True, delivered=True))
    assert (job.state, job.reason) == (JobState.FAILED, "uses 20 GiB of GPU memory, 10 GiB were given to it")
    assert (job.suspensions, job.attempts[-1].stop.cause) == ([], StopCause.EXPELLED)


def test_a_job_that_completes_before_it_is_asked_has_completed() -> None:
    lab = Lab()
    job = lab.running("1/4", suspend=SuspendMode.NONE)
    overrun(lab, job, 20)
    lab.end(job, ExitFacts(stop_requested=True))
    assert job.state is JobState.COMPLETED


def test_who_asked_for_it_does_not_matter_once_it_is_to_stop_anyway() -> None:
    lab = Lab()
    job = lab.running("1/4")
    lab.tell(e.SuspendRequested(job.id))
    assert overrun(lab, job, 20) == []
    assert (job.attempts[-1].stop.cause, job.gpu_memory.requested_bytes) == (StopCause.SUSPENDED, 0)


@pytest.mark.parametrize("gpu", ["a1", "zzz", ""])
def test_a_gpu_that_it_does_not_have_is_not_overrun(gpu: str) -> None:
    lab = Lab()
    job = lab.running("1/4")
    assert lab.tell(e.MemoryOverran(job.id, 1, GpuId(gpu), 20 * GIB, 10 * GIB)) == []


def test_a_cancel_wins_over_an_overrun() -> None:
    lab = Lab()
    job = lab.running("1/4")
    overrun(lab, job, 20)
    lab.tell(e.CancelRequested(job.id))
    lab.end(job)
    assert job.state is JobState.CANCELLED


def test_a_swapped_job_keeps_its_process_and_comes_back_once_it_has_its_gpu_to_itself() -> None:
    lab = Lab(gpus=1)
    other = lab.running("1/4")
    job = lab.running("1/4", suspend=SuspendMode.SWAP)
    [stop] = [command for command in overrun(lab, job, 12) if isinstance(command, Stop)]
    assert stop.swaps == 0
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 12 * GIB, 1.0))
    assert (job.state, job.off_gpu, len(job.attempts)) == (JobState.SUSPENDED, True, 1)
    lab.end(other, ExitFacts())
    lab.tell(e.AttemptStarted(job.id, 1, 100, None, 1))
    assert (job.state, len(job.attempts), held(job)) == (JobState.RUNNING, 1, (WHOLE, 40 * GIB))
    assert overrun(lab, job, 12) == []
    lab.end(job, ExitFacts())
    assert job.state is JobState.COMPLETED
    assert not lab.cluster.state.nodes["a"].held.whole


# --- out of memory ---


def test_who_runs_out_of_memory_beside_others_is_run_once_more_with_a_gpu_of_its_own() -> None:
    lab = Lab(gpus=2)
    neighbour, job = lab.running("1/4"), lab.running("1/4")
    lab.exit(job, OUT_OF_MEMORY)
    assert job.state is JobState.SUSPENDED
    assert job.reason == "out of GPU memory (10 GiB); it is run again, this once, with a GPU of its own"
    commands = lab.tell(e.AttemptFreed(job.id, 1))
    [launch] = [command for command in commands if isinstance(command, Launch)]
    assert (launch.spec.gpus_min, launch.spec.gpus_max, launch.spec.gpu_mem_bytes) == (WHOLE, WHOLE, 0)
    lab.start(job)
    assert (held(job), job.retries.failures) == ((WHOLE, 40 * GIB), 0)
    assert (job.gpu_memory.requested_bytes, job.gpu_memory.changed_because) == (
        11 * GIB,
        "it ran out of 10 GiB in attempt 1",
    )
    assert "attempt 1 ended: exit code 1, out of GPU memory" in told(lab)
    assert "needs 11 GiB of GPU memory and a GPU of its own: it ran out of 10 GiB in attempt 1" in told(lab)
    lab.wait(60)
    lab.end(job, used(14))
    assert (job.state, neighbour.state) == (JobState.COMPLETED, JobState.RUNNING)
    needs = learned(lab)
    assert needs is not None
    assert needs.mem_bytes == int(15.5 * GIB)


def test_the_second_time_it_has_failed_and_retries_count_from_then_on() -> None:
    lab = Lab()
    job = lab.running("1/4", retries=1)
    for _ in range(3):
        lab.end(job, OUT_OF_MEMORY)
        lab.wait(2)
        if job.state is JobState.STARTING:
            lab.start(job)
    assert (job.state, job.reason) == (JobState.FAILED, "out of GPU memory (40 GiB)")
    assert (len(job.attempts), job.retries.failures) == (3, 1)


def test_on_a_whole_gpu_it_has_failed_at_once() -> None:
    lab = Lab()
    job = lab.running(2)
    lab.end(job, OUT_OF_MEMORY)
    assert (job.state, job.reason) == (JobState.FAILED, "out of GPU memory (40 GiB)")


def test_a_gpu_on_which_it_could_not_have_more_is_not_its_own() -> None:
    lab = Lab(nodes="", gpus=1)
    lab.tell(replace(registration("a", 1), gpus=(GpuFacts(GpuId("a0"), 0, "T4", 12 * GIB),)))
    lab.tell(registration("b", 1))
    filling = lab.running("1/16", gpu_mem_bytes=26 * GIB)
    job = lab.running("1/4", gpu_mem_bytes=12 * GIB)
    assert (filling.attempts[-1].allocation.gpu_ids, job.attempts[-1].allocation.gpu_ids) == (("b0",), ("b0",))
    lab.end(job, OUT_OF_MEMORY)
    lab.wait(2)
    assert job.state is JobState.SUSPENDED  # the T4 is free, but smaller than what was not enough
    lab.end(filling, ExitFacts())
    assert job.attempts[-1].allocation.gpu_ids == ("b0",)


@pytest.mark.parametrize(
    "exit",
    [
        ExitFacts(out_of_memory=True),
        ExitFacts(exit_code=75, out_of_memory=True),
        ExitFacts(lost=True, out_of_memory=True),
    ],
)
def test_what_did_not_fail_did_not_run_out_of_memory(exit: ExitFacts) -> None:
    lab = Lab()
    job = lab.running("1/4")
    lab.end(job, exit)
    assert (job.gpu_memory.alone_after, job.gpus_min, job.gpu_memory.requested_bytes) == (0, QUARTER, 0)


def test_a_job_that_its_user_suspended_meanwhile_waits_for_its_user() -> None:
    lab = Lab()
    job = lab.running("1/4")
    lab.tell(e.HoldRequested(job.id))
    lab.end(job, OUT_OF_MEMORY)
    lab.wait(5)
    assert (job.state, job.held_by) == (JobState.SUSPENDED, HeldBy.USER)
    lab.tell(e.ReleaseRequested(job.id))
    assert held(job)[0] == WHOLE


# --- the journal ---


def test_the_journal_brings_all_of_it_back() -> None:
    lab = Lab()
    run(lab, 4)
    hungry, failing = lab.running("1/4"), lab.running("1/4")
    overrun(lab, hungry, 20)
    lab.end(hungry)
    lab.end(failing, OUT_OF_MEMORY)
    again = Cluster(create_policy("fitgpp", {}))
    for now, event in lab.journal:
        again.replay(decode_event(type(event).__name__, encode(event)), now)
    for job in (hungry, failing):
        twin = again.state.jobs[job.id]
        assert (twin.gpu_memory, twin.gpus_min) == (job.gpu_memory, job.gpus_min)
    assert again.state.peaks == lab.cluster.state.peaks


def test_an_exit_that_was_recorded_before_all_this_is_read_as_ever() -> None:
    old = {"job": "1", "attempt": 1, "exit": {"exit_code": 1}, "progress": None, "freed": True, "node": ""}
    event = decode_event("AttemptExited", old)
    assert isinstance(event, e.AttemptExited)
    assert (event.exit.gpu_mem_peak_bytes, event.exit.out_of_memory) == (None, False)
