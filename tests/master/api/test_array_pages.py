"""What is shown of an array as a whole, and what of it to others."""

import math

import grpc
import pytest
from ebbtide_master.api import arrays
from ebbtide_master.identity.visibility import redact
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.master.api.test_users import people
from tests.master.world import FREED, RUNNING, STEPPED_ASIDE, Agent, Master, a_master, make_spec, refused

CONFLICT, UNKNOWN, INVALID = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
)


def a_sweep(*rates: str, **fields) -> client_pb2.SubmitRequest:
    """An array of a task for each learning rate."""
    tasks = [client_pb2.ArrayTask(index=index, params={"lr": rate, "opt": "adam"}) for index, rate in enumerate(rates)]
    return client_pb2.SubmitRequest(spec=make_spec(name="sweep", **fields), tasks=tasks, user="ann")


async def starts(master: Master, agent: Agent, task: str, step: int, loss: float, **metrics: float) -> None:
    await agent.receive("launch")
    progress = job_pb2.Progress(step=step, total=100, loss=loss, metrics=metrics)
    await agent.report(task, 1, RUNNING, progress=progress)
    await master.becomes(task, "RUNNING")


async def test_an_array_has_a_column_of_states_of_a_param_and_of_a_metric_and_rows(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        array = (await master.ask.Submit(a_sweep("1e-3", "0.1", "big"))).job_id
        await starts(master, agent, f"{array}.0", 10, 0.5, accuracy=0.25)

        async def shown(**asked) -> client_pb2.ShowArrayReply:
            return await master.ask.ShowArray(client_pb2.ShowArrayRequest(job_id=array, **asked))

        while not (found := await shown()).metrics:
            pass
        assert (found.job_id, found.user, found.name, list(found.indices)) == (array, "ann", "sweep", [0, 1, 2])
        names = [job_pb2.JobState.Name(state).removeprefix("JOB_STATE_") for state in found.states]
        assert names[0] == "RUNNING"
        assert (list(found.params), list(found.metrics)) == (["lr", "opt"], ["loss", "accuracy"])
        assert (found.param, found.metric, found.less_is_better) == ("lr", "loss", True)
        assert list(found.x)[:2] == [0.001, 0.1]
        assert math.isnan(found.x[2])
        assert found.y[0] == 0.5
        assert all(map(math.isnan, found.y[1:]))
        row = found.rows[0]
        assert (row.index, row.step, row.total, row.value, dict(row.params)) == (
            0, 10, 100, 0.5, {"lr": "1e-3", "opt": "adam"},
        )  # fmt: skip
        assert (await shown(metric="accuracy")).rows[0].value == 0.25
        assert (await shown(metric="none", param="none")).metric == "loss"
        assert [row.index for row in (await shown(first=1, limit=1)).rows] == [1]
        assert list((await shown(first=9)).rows) == []
        some = await master.ask.ShowArray(client_pb2.ShowArrayRequest(job_id=f"{array}.1-2"))
        assert (some.job_id, list(some.indices), [row.index for row in some.rows]) == (array, [1, 2], [1, 2])


async def test_what_a_task_reported_is_hidden_from_other_users_while_it_pauses_as_its_user_held_it(tmp_path):
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", 1)
        asha = job_pb2.Asha(min_steps=1, max_steps=16, metric="loss", eta=4)
        task = f"{(await master.ask.Submit(a_sweep('1', '2', asha=asha))).job_id}.0"
        await starts(master, agent, task, 0, 0.5)
        await master.ask.Hold(client_pb2.JobRequest(job_id=task))
        await agent.report(task, 1, RUNNING, progress=job_pb2.Progress(step=1, total=100, loss=0.5))
        await agent.receive("stop")
        job = await master.becomes(task, "SUSPENDING")
        assert (job.held_by, "loss 0.5" in job.reason) == ("user", True)
        await agent.report(task, 1, FREED, exit=STEPPED_ASIDE)
        after = await master.becomes(task, "SUSPENDED")
        for shown in (job, after):
            assert "loss" not in str(redact(shown, "bob", lambda id: "ann"))


async def test_a_sweep_counts_who_reached_each_rung(tmp_path):
    async with a_master(tmp_path) as master:
        asha = job_pb2.Asha(min_steps=1, max_steps=64, metric="accuracy", maximise=True, eta=4)
        array = (await master.ask.Submit(a_sweep("1", "2", asha=asha))).job_id
        found = await master.ask.ShowArray(client_pb2.ShowArrayRequest(job_id=array))
        assert [(rung.steps, rung.tasks) for rung in found.rungs] == [(1, 0), (4, 0), (16, 0)]
        assert not found.less_is_better


async def test_of_a_large_array_all_states_and_so_many_rows_are_shown(tmp_path):
    async with a_master(tmp_path) as master:
        array = (await master.ask.Submit(a_sweep(*map(str, range(1000))))).job_id
        found = await master.ask.ShowArray(client_pb2.ShowArrayRequest(job_id=array))
        assert (len(found.states), len(found.x), len(found.rows)) == (1000, 1000, arrays.MOST_ROWS)


async def test_what_is_no_array_is_refused_by_name(tmp_path):
    async with a_master(tmp_path) as master:
        job = await master.submit()

        async def why(**asked) -> tuple[grpc.StatusCode, str]:
            return await refused(master.ask.ShowArray(client_pb2.ShowArrayRequest(**asked)))

        assert await why(job_id=job) == (CONFLICT, f"job {job} is not an array")
        array = (await master.ask.Submit(a_sweep("1", "2"))).job_id
        assert (await why(job_id="99"))[0] == (await why(job_id=f"{array}.7-9"))[0] == UNKNOWN
        assert await why(job_id=array, limit=201) == (INVALID, "limit: 201 tasks are over the limit of 200")
        assert (await why(job_id=array, metric="x" * 65))[0] == INVALID


@pytest.mark.parametrize(("name", "tells"), [("bob", False), ("ann", True), ("olga", True)])
async def test_what_the_tasks_of_others_stand_for_and_report_is_hidden(tmp_path, name, tells):
    async with people(tmp_path) as (_, found):
        array = (await found["ann"].Submit(a_sweep("CANARY", "2"))).job_id
        shown = await found[name].ShowArray(client_pb2.ShowArrayRequest(job_id=array))
        assert ("CANARY" in str(shown), list(shown.params) != []) == (tells, tells)
        assert (len(shown.states), len(shown.rows), shown.user) == (2, 2, "ann")
        assert bool(shown.x) is tells
