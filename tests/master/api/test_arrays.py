"""Arrays, dependencies and requeuing through the master: accepted at once, named at once, told apart."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from ebbtide_core.events import JobSubmitted, RequeueRequested
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobId, Task
from ebbtide_master.api.submissions import digest_of, jobs_requested
from ebbtide_protos.spec import spec_from_message
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import DEADLINE_S, EXITED, FREED, RUNNING, STEPPED_ASIDE, a_master, make_spec

FAILED = agent_pb2.ExitRecord(exit_code=3, ended_at=1001.0)


@asynccontextmanager
async def cluster(tmp_path, gpus=4, **options):
    async with a_master(tmp_path, **options) as master:
        yield master, await master.agent("n1", gpus)


def requested(count=3, params=None, user="ann", gpus=1, dry_run=False, operation="", **fields):
    tasks = [
        client_pb2.ArrayTask(index=index, params={} if params is None else params[index]) for index in range(count)
    ]
    limits = {key: fields.pop(key) for key in ("max_concurrent", "max_slots") if key in fields}
    return client_pb2.SubmitRequest(
        spec=make_spec(gpus, **fields), user=user, tasks=tasks, dry_run=dry_run, operation_id=operation, **limits
    )


async def submit(master, *args, **fields):
    return (await master.ask.Submit(requested(*args, **fields), timeout=DEADLINE_S)).job_id


def after(id, kind="OK"):
    return [job_pb2.Dependency(job_id=id, kind=getattr(job_pb2, f"AFTER_KIND_{kind}"))]


async def start(agent, number=1):
    """The next launch runs; its id."""
    job = (await agent.receive("launch")).job_id
    await agent.report(job, number, RUNNING)
    return job


async def end(agent, job, exit=None, number=1):
    fields = {} if exit is None else {"exit": exit}
    await agent.report(job, number, EXITED, **fields)
    await agent.report(job, number, FREED, **fields)


async def listed(master, *ids):
    jobs = (await master.ask.ListJobs(client_pb2.ListJobsRequest(job_ids=ids, all=True))).jobs
    return {job.job_id: job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_") for job in jobs}


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


async def test_an_array_is_jobs_of_its_own_with_params_in_command_and_environment(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        params = [{"lr": ".1", "wd": "0"}, {"lr": ".01", "wd": "{lr}"}]
        command = ["train", "--lr={lr}", "{wd}", "{index}", "${lr}"]
        assert await submit(master, 2, params, command=command, env={"A": "b"}) == "1"
        launch = await agent.receive("launch")
        launches = {launch.job_id: launch, (other := await agent.receive("launch")).job_id: other}
        assert list(launches["1.0"].spec.command) == ["train", "--lr=.1", "0", "{index}", "$.1"]
        assert list(launches["1.1"].spec.command)[2] == "{lr}"
        assert dict(launches["1.1"].spec.env) == {"A": "b", "EBB_PARAM_LR": ".01", "EBB_PARAM_WD": "{lr}"}
        shown = await master.show("1.1")
        assert (shown.array, shown.index, dict(shown.params)) == ("1", 1, params[1])
        assert await master.submit() == "2"


def test_others_have_a_turn_between_any_two_tasks_of_an_array_that_are_made():
    tasks = [client_pb2.ArrayTask(index=index, params={"lr": str(index)}) for index in range(5)]
    spec = JobSpec(command=("x", "{lr}"), workdir="/", env={"SEED": "1"})
    parts = jobs_requested(client_pb2.SubmitRequest(tasks=tasks), spec)
    for _ in tasks:
        next(parts)
    with pytest.raises(StopIteration) as end:
        next(parts)
    assert [(spec.command, spec.env) for spec, _ in end.value.value] == [
        (("x", str(index)), {"EBB_PARAM_LR": str(index)}) for index in range(5)
    ]


async def test_so_many_tasks_at_a_time_run_and_the_others_say_why_not(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        await submit(master, 3, max_concurrent=1)
        await master.becomes(await start(agent), "RUNNING")
        assert (await master.show("1.1")).reason == "at most 1 job of array 1 runs at once"
        change = client_pb2.ChangeRequest(job_id="1", max_concurrent=2, user="ann")
        reply = await master.ask.Change(change)
        assert (reply.tasks.max_concurrent, reply.reason) == (2, "1 running, 1 starting, 1 pending")
        assert await start(agent) == "1.1"


async def test_an_array_is_shown_watched_and_cancelled_as_one(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        await submit(master, 4)
        jobs = [await start(agent) for _ in range(4)]
        assert jobs == ["1.0", "1.1", "1.2", "1.3"]
        some = await master.ask.Cancel(client_pb2.CancelRequest(job_id="1.2-3", now=True))
        assert (some.job_id, some.tasks.indices, dict(some.tasks.states)) == ("1.2-3", "2-3", {"STOPPING": 2})
        await master.ask.Cancel(client_pb2.CancelRequest(job_id="1", now=True))
        watching = asyncio.create_task(master.becomes("1", "CANCELLED"))
        for job in jobs:
            await end(agent, job, agent_pb2.ExitRecord(signal=9, stop_requested=True, delivered=True, ended_at=1001.0))
        assert (await watching).reason == "4 cancelled"
        again = await master.ask.Cancel(client_pb2.CancelRequest(job_id="1"))
        assert dict(again.tasks.states) == {"CANCELLED": 4}


async def test_a_wish_for_an_array_is_for_those_that_can_grant_it(tmp_path):
    async with cluster(tmp_path, gpus=1) as (master, agent):
        await submit(master, 3)
        await end(agent, await start(agent))
        await agent.receive("launch")
        held = await master.ask.Hold(client_pb2.JobRequest(job_id="1"))
        assert dict(held.tasks.states) == {"COMPLETED": 1, "STARTING": 1, "PENDING": 1}
        assert (await master.show("1.2")).held_by == "user"
        assert await refusal(master.ask.Hold(client_pb2.JobRequest(job_id="1.0"))) == (
            "FAILED_PRECONDITION",
            "job 1.0 is COMPLETED already",
        )
        assert await refusal(master.ask.Hold(client_pb2.JobRequest(job_id="1.7-9"))) == (
            "NOT_FOUND",
            "job 1.7-9 does not exist",
        )
        assert (await refusal(master.ask.Explain(client_pb2.JobRequest(job_id="1"))))[1] == (
            "job 1 is an array: name one of its tasks, such as 1.0"
        )


async def test_a_drill_of_an_array_is_refused_before_anything_is_stopped(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        await submit(master, 2)
        for _ in range(2):
            await start(agent)
        for id in ("1", "1.0-1"):
            assert await refusal(master.ask.Drill(client_pb2.JobRequest(job_id=id))) == (
                "FAILED_PRECONDITION",
                f"job {id} is an array: name one of its tasks, such as 1.0",
            )
        states = await listed(master, "1")
        assert set(states.values()) <= {"STARTING", "RUNNING"}
        assert len(states) == 2


async def test_a_repeated_submit_finds_the_array_again_and_a_dry_run_makes_none(tmp_path):
    async with cluster(tmp_path) as (master, _):
        assert await submit(master, 2, dry_run=True) == ""
        assert await submit(master, 2, operation="op") == "1"
        assert await submit(master, 2, operation="op") == "1"
        assert await master.submit() == "2"


async def test_the_rest_of_an_array_that_a_master_began_waits_for_the_same_job_as_its_first_task(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        first = await master.submit()
        request = requested(3, operation="once", after=after("@"))
        spec = replace(spec_from_message(request.spec), after=(Dependency(JobId(first), AfterKind.OK),))
        task = Task(JobId("2"), 0, 3)
        begun = JobSubmitted(JobId("2.0"), spec, "ann", False, "once", task, request=digest_of(request))
        await master.service.loop.tell(lambda _: [begun], lambda _: None)
        assert (await master.ask.Submit(request)).job_id == "2"
        for index in range(3):
            assert [one.job_id for one in (await master.show(f"2.{index}")).spec.after] == [first]
        assert await start(agent) == first
        await end(agent, first)
        assert {await start(agent) for _ in range(3)} == {"2.0", "2.1", "2.2"}


async def test_ids_go_on_after_a_restart(tmp_path):
    async with a_master(tmp_path) as master:
        await submit(master, 3)
        await master.submit()
    async with a_master(tmp_path) as master:
        assert await submit(master, 2) == "3"
        assert await master.submit() == "4"
        assert set(await listed(master, "1", "3")) == {"1.0", "1.1", "1.2", "3.0", "3.1"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0, "max_concurrent": 2}, "--max-concurrent: is a limit for the tasks of an array"),
        ({"gpus": 2, "max_slots": 1}, "--max-slots: 1 are less than the 2 of one task"),
        ({"count": 1, "params": [{"l r": "1"}]}, "--param: 'l r' is not a name"),
        ({"after": after("9")}, "--after: job 9 does not exist"),
        ({"after": after("@")}, "--after: job @ does not exist"),
        ({"begin_at": -1.0}, "--begin: -1.0 is not between 0 and 1e"),
    ],
)
async def test_what_has_no_meaning_is_refused_as_a_whole(tmp_path, fields, message):
    async with a_master(tmp_path) as master:
        code, words = await refusal(submit(master, **fields))
        assert (code, message in words) == ("INVALID_ARGUMENT", True), words
        assert await listed(master) == {}


async def test_the_last_job_of_the_same_user_may_be_waited_for(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        await submit(master, 2)
        other = await submit(master, 0, user="bob")
        third = await submit(master, 0, after=after("@"), user="ann")
        fourth = await submit(master, 0, after=after("@~1", "ANY"), user="ann")
        assert (await master.show(third)).spec.after[0].job_id == "1"
        assert (await master.show(fourth)).spec.after[0].job_id == "1"
        assert (await master.show(third)).reason == "waits for job 1 to complete"
        assert {await start(agent) for _ in range(3)} == {"1.0", "1.1", other}
        await end(agent, "1.0", FAILED)
        assert (await master.becomes(third, "CANCELLED")).reason.startswith("cancelled: it was to wait for job 1")
        await end(agent, "1.1")
        assert await start(agent) == fourth


async def test_the_failed_tasks_of_an_array_are_run_again_with_the_same_indices(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        await submit(master, 3, [{"lr": str(n)} for n in range(3)], max_concurrent=3, command=["train", "{lr}"])
        jobs = [await start(agent) for _ in range(3)]
        nothing = client_pb2.RequeueRequest(job_id="1", failed=True, user="ann")
        assert (await refusal(master.ask.Requeue(nothing)))[1] == "--failed: no task of job 1 failed"
        for job in jobs:
            await end(agent, job, None if job == "1.0" else FAILED)
        await master.becomes("1", "FAILED")
        request = client_pb2.RequeueRequest(job_id="1", failed=True, operation_id="once", user="ann")
        again = await master.ask.Requeue(request)
        assert (again.job_id, again.tasks.indices, again.tasks.max_concurrent) == ("2", "1-2", 3)
        assert (await master.ask.Requeue(request)).job_id == "2"
        assert {await start(agent), await start(agent)} == {"2.1", "2.2"}
        first, second = await master.show("1.1"), await master.show("2.1")
        assert (first.again_as, second.again_of, second.params["lr"]) == ("2.1", "1.1", "1")
        assert list(second.spec.command) == ["train", "1"]
        story = (await master.ask.ShowStory(client_pb2.JobRequest(job_id="1.1"))).events
        assert story[-1].text == "submitted again, as job 2.1"
        story = (await master.ask.ShowStory(client_pb2.JobRequest(job_id="2.1"))).events
        assert story[0].text.endswith("task 1 of array 2, again after job 1.1")


async def test_a_job_that_runs_goes_back_to_the_queue_and_one_that_is_over_is_submitted_again(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        job = await master.running(agent, after=[])
        request = client_pb2.RequeueRequest(job_id=job, user="ann")
        assert (await master.ask.Requeue(request)).reason == "requeued by user"
        await agent.receive("stop")
        await end(agent, job, agent_pb2.ExitRecord(exit_code=85, stop_requested=True, delivered=True, caught=True,
                                                   acknowledged=True, ended_at=1001.0))  # fmt: skip
        launch = await agent.receive("launch")
        assert (launch.job_id, launch.attempt) == (job, 2)
        await agent.report(job, 2, RUNNING)
        await end(agent, job, number=2)
        await master.becomes(job, "COMPLETED")
        assert (await master.ask.Requeue(request)).job_id == "2"
        waiting = await master.submit(hold=True)
        assert (await refusal(master.ask.Requeue(client_pb2.RequeueRequest(job_id=waiting))))[
            0
        ] == "FAILED_PRECONDITION"
        assert (await refusal(master.ask.Requeue(client_pb2.RequeueRequest(job_id="77"))))[0] == "NOT_FOUND"


async def test_a_requeue_of_what_ran_is_not_done_again_when_it_is_asked_for_once_more(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        job = await master.running(agent)
        array = await submit(master, 2)
        tasks = [await start(agent) for _ in range(2)]
        asked = [client_pb2.RequeueRequest(job_id=id, operation_id=f"of {id}", user="ann") for id in (job, array)]
        first = [await master.ask.Requeue(request) for request in asked]
        for one in (job, *tasks):
            await agent.report(one, 1, FREED, exit=STEPPED_ASIDE)
        for one in [await start(agent, number=2) for _ in range(3)]:
            await end(agent, one, number=2)
        for id in (job, array):
            await master.becomes(id, "COMPLETED")
        again = [await master.ask.Requeue(request) for request in asked]
        assert [reply.job_id for reply in again] == [reply.job_id for reply in first] == [job, array]
        assert len((await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True))).jobs) == 3
        other = client_pb2.RequeueRequest(job_id=array, operation_id=f"of {job}", user="ann")
        assert (await refusal(master.ask.Requeue(other)))[0] == "FAILED_PRECONDITION"


async def test_a_requeue_of_an_array_that_a_master_began_is_carried_on_when_it_is_asked_for_once_more(tmp_path):
    async with cluster(tmp_path) as (master, agent):
        array = await submit(master, 3)
        tasks = [await start(agent) for _ in range(3)]
        request = client_pb2.RequeueRequest(job_id=array, operation_id="once", user="ann")
        begun = RequeueRequested(JobId(tasks[0]), "once", digest_of(request))
        await master.service.loop.tell(lambda _: [begun], lambda _: None)
        for _ in range(2):
            await master.ask.Requeue(request)
        stories = [(await master.ask.ShowStory(client_pb2.JobRequest(job_id=task))).events for task in tasks]
        assert [sum("back to the queue" in event.text for event in story) for story in stories] == [1, 1, 1]


@pytest.mark.parametrize(("field", "value"), [("operation_id", "x" * 65), ("user", "a\nb")])
async def test_a_requeue_is_bounded_as_a_submit_is(tmp_path, field, value):
    async with a_master(tmp_path) as master:
        code, words = await refusal(master.ask.Requeue(client_pb2.RequeueRequest(job_id="1", **{field: value})))
        assert (code, words.partition(":")[0]) == ("INVALID_ARGUMENT", field)


async def test_quotas_hold_back_and_refuse(tmp_path):
    settings = Settings(quotas=Quotas(Quota(2 * WHOLE, 4)))
    async with cluster(tmp_path, settings=settings) as (master, agent):
        await submit(master, 3)
        assert {await start(agent), await start(agent)} == {"1.0", "1.1"}
        assert (await master.show("1.2")).reason == "ann has 2 of 2 GPUs of the quota"
        explained = await master.ask.Explain(client_pb2.JobRequest(job_id="1.2"))
        assert explained.reason == "ann has 2 of 2 GPUs of the quota"
        assert await refusal(submit(master, 2)) == (
            "RESOURCE_EXHAUSTED",
            "ann has 3 unfinished jobs: 2 more are over the limit of 4",
        )
        assert (await refusal(submit(master, 0, gpus=3)))[0] == "INVALID_ARGUMENT"
        await submit(master, 2, user="bob")
