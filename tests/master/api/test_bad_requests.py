"""What is asked for is more than there may be, or makes no sense: refused at once, in words that name it."""

import math
from typing import Any

import grpc
import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import WakeAt
from ebbtide_core.model import limits
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId, JobState
from ebbtide_core.policies.registry import create_policy
from ebbtide_protos.v1 import booking_pb2, client_pb2, job_pb2

from tests.core.lab import DONE, registration
from tests.master.world import DEADLINE_S, a_master, make_spec, refused

INVALID, CONFLICT = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def request(operation: str = "", **spec: Any) -> client_pb2.SubmitRequest:
    return client_pb2.SubmitRequest(spec=make_spec(**spec), user="ann", operation_id=operation)


async def test_a_name_that_would_spoil_a_list_is_refused(tmp_path) -> None:
    async with a_master(tmp_path) as master:
        for name in ("a\nb", "a\x1b[2Jb", "a\u2028b", "a\x7f"):
            told = await refused(master.ask.Submit(request(name=name)))
            assert told == (INVALID, "--name: contains a line break or another control character")
        assert await refused(master.ask.Submit(request(name=" "))) == (INVALID, "--name: is blank")
        assert (await master.ask.Submit(request(name="größer 訓練 ✓"))).job_id


# --- one operation id, one request ---


async def test_an_operation_id_that_was_used_for_another_request_is_refused_by_the_next_master_too(tmp_path) -> None:
    async with a_master(tmp_path) as master:
        first = await master.ask.Submit(request("op"))
        other = request("op", command=["another"])
        code, words = await refused(master.ask.Submit(other))
        assert (code, words) == (CONFLICT, "operation_id: op was used for another request: every request needs its own")
        assert (await master.ask.Submit(request("op"))).job_id == first.job_id
    async with a_master(tmp_path) as master:
        assert (await refused(master.ask.Submit(other)))[0] is CONFLICT
        assert (await master.ask.Submit(request("op"))).job_id == first.job_id
        again = client_pb2.RequeueRequest(job_id=first.job_id, operation_id="op", user="ann")
        assert (await refused(master.ask.Requeue(again)))[0] is CONFLICT


async def test_nothing_of_an_environment_is_kept_to_tell_requests_apart(tmp_path) -> None:
    """Not even a digest: whoever guesses a secret could look whether they are right."""
    async with a_master(tmp_path) as master:
        first = await master.ask.Submit(request("op", env={"TOKEN": "a"}))
        assert (await master.ask.Submit(request("op", env={"TOKEN": "b"}))).job_id == first.job_id


async def test_somebody_elses_operation_id_leads_to_no_job_of_theirs(tmp_path) -> None:
    async with a_master(tmp_path) as master:
        await master.ask.Submit(request("op"))
        eve = request("op")
        eve.user = "eve"
        assert (await refused(master.ask.Submit(eve)))[0] is CONFLICT


# --- arrays, ids, dependencies ---


async def test_an_array_of_a_million_tasks_is_refused_at_once(tmp_path) -> None:
    """As many as fit into a message: its size is refused first if there are more."""
    async with a_master(tmp_path) as master:
        wanted = request()
        wanted.tasks.extend(client_pb2.ArrayTask(index=number) for number in range(500_000))
        code, words = await refused(master.ask.Submit(wanted, timeout=DEADLINE_S))
        assert (code, words) == (INVALID, "--array: 500000 tasks are over the limit of 10000")
        wanted.tasks.extend(client_pb2.ArrayTask(index=number) for number in range(500_000, 1_000_000))
        code, words = await refused(master.ask.Submit(wanted, timeout=DEADLINE_S))
        assert code is EXHAUSTED
        assert str(limits.MAX_MESSAGE_BYTES) in words


@pytest.mark.parametrize("method", ["ListJobs", "WatchJobs"])
async def test_more_ids_than_a_request_may_name_are_refused(tmp_path, method) -> None:
    ids = ["1"] * (limits.MAX_IDS + 1)
    async with a_master(tmp_path) as master:
        if method == "ListJobs":
            call = master.ask.ListJobs(client_pb2.ListJobsRequest(job_ids=ids))
        else:
            call = master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=ids)).read()
        assert await refused(call) == (INVALID, "job_ids: 10001 are over the limit of 10000")


@pytest.mark.parametrize("after", ["1", "99", "", "x\0", "1.5", "@~9999", "9" * 5000])
async def test_a_job_cannot_wait_for_itself_or_for_nobody(tmp_path, after) -> None:
    """Its own id is not given out before it is accepted, so a circle cannot be closed either."""
    async with a_master(tmp_path) as master:
        wanted = request(after=[job_pb2.Dependency(job_id=after)])
        code, words = await refused(master.ask.Submit(wanted))
        assert code is INVALID
        assert words.startswith("--after: job ")
        assert len(words) < 100


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_chain_of_100_000_jobs_is_followed_to_its_end_without_recursion(count) -> None:
    """Each waits for the one before it; the first fails, and nobody is left waiting."""
    cluster = Cluster(create_policy("fifo", {}))
    for number in range(1, count + 1):
        after = (Dependency(JobId(str(number - 1)), AfterKind.OK),) if number > 1 else ()
        spec = JobSpec(command=("x",), workdir="/", after=after)
        cluster.handle(e.JobSubmitted(JobId(str(number)), spec, "ann"), 0.0)
    out = cluster.handle(e.CancelRequested(JobId("1"), True), 1.0)
    while any(isinstance(command, WakeAt) and command.time <= 1.0 for command in out):
        out = cluster.handle(e.SchedulingDue(), 1.0)
    assert not cluster.state.unfinished
    assert {job.state for job in cluster.state.jobs.values()} == {JobState.CANCELLED}


def test_a_long_chain_runs_one_after_the_other() -> None:
    cluster = Cluster(create_policy("fifo", {}))
    cluster.handle(registration("a", 1), 0.0)
    for number in range(1, 301):
        after = (Dependency(JobId(str(number - 1)), AfterKind.OK),) if number > 1 else ()
        cluster.handle(
            e.JobSubmitted(JobId(str(number)), JobSpec(command=("x",), workdir="/", after=after), "ann"), 0.0
        )
    for number in range(1, 301):
        cluster.handle(e.SchedulingDue(), float(number))
        job = cluster.state.jobs[JobId(str(number))]
        assert job.state is JobState.STARTING
        cluster.handle(e.AttemptStarted(job.id, 1, 1), float(number))
        cluster.handle(e.AttemptExited(job.id, 1, DONE, freed=True), float(number))
        cluster.handle(e.AttemptFreed(job.id, 1), float(number))
    assert not cluster.state.unfinished


# --- times and offsets ---

ODD_TIMES = [-1.0, -0.0, 1e-308, 1e11, 1.1e11, 1e18, 1e308, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", ODD_TIMES)
async def test_a_time_that_no_clock_shows_is_refused_or_means_what_it_says(tmp_path, value) -> None:
    async with a_master(tmp_path) as master:
        await master.agent("n1")
        booking = booking_pb2.ReserveGpusRequest
        asked = [
            *(master.ask.Submit(request(**{field: value})) for field in ("begin_at", "time_limit_s", "idle_limit_s")),
            master.ask.DrainNode(client_pb2.DrainNodeRequest(node="n1", deadline_s=value)),
            *(
                master.ask.ReserveGpus(booking(user="ann", gpus=1, **{"start": 1e10, "end": 1e10 + 60, field: value}))
                for field in ("start", "end")
            ),
        ]
        codes = {await status(call) for call in asked}
        assert codes <= {grpc.StatusCode.OK, INVALID, CONFLICT}
        assert (await master.ask.ShowCluster(client_pb2.ShowClusterRequest())).now > 0


async def status(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_the_journal_is_read_from_any_line_on(tmp_path) -> None:
    async with a_master(tmp_path) as master:
        await master.submit()
        for after in (2**31, 2**63 - 1, 2**63, 2**64 - 1):
            stream = master.ask.WatchEvents(client_pb2.WatchEventsRequest(after_sequence=after))
            assert [event async for event in stream] == []


# --- standard input, which can be read once ---


async def test_tasks_cannot_share_an_input_and_what_had_one_is_not_submitted_again(tmp_path) -> None:
    async with a_master(tmp_path) as master:
        reads = {"stdin": True, "suspend": job_pb2.SUSPEND_MODE_NONE}
        array = request(**reads)
        array.tasks.add(index=1)
        words = "--array: its tasks cannot share standard input: add </dev/null to do without"
        assert await refused(master.ask.Submit(array)) == (INVALID, words)
        job = (await master.ask.Submit(request(**reads))).job_id
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=job))
        again = client_pb2.RequeueRequest(job_id=job, user="ann")
        words = f"job {job} read standard input, which is gone: run it anew with 'ebb run'"
        assert await refused(master.ask.Requeue(again)) == (CONFLICT, words)
