"""What nodes say of GPU memory, and what clients are told of it; agents here say what a node's watchdog would."""

import json
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.resources.gpu_selection import CONTEXT_BYTES
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import FREED, GIB, RUNNING, STEPPED_ASIDE, Agent, Master, a_master, make_spec, share

OUT_OF_MEMORY = agent_pb2.ExitRecord(exit_code=1, ended_at=1001.0, out_of_memory=True)
QUARTER: dict[str, Any] = {"gpus_min": share(1, 4)}
OVERRUN: dict[str, Any] = {"overran_gpu": "n1-0", "overran_bytes": 20 * GIB, "allowed_bytes": 10 * GIB}


@pytest.fixture(autouse=True)
def a_moment_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs teach however short they were."""
    monkeypatch.setattr(gpu_memory, "TELLING_S", 0.0)


async def submit(master: Master, **fields: Any) -> client_pb2.SubmitReply:
    """The whole answer to the submit of a job on a quarter of a GPU."""
    dry_run, operation = fields.pop("dry_run", False), fields.pop("operation", "")
    spec = make_spec(**(QUARTER | fields))
    request = client_pb2.SubmitRequest(spec=spec, user="ann", dry_run=dry_run, operation_id=operation)
    return await master.ask.Submit(request)  # type: ignore[no-any-return]


async def run(master: Master, agent: Agent, peak: int) -> str:
    """A run of the script that used so many bytes."""
    job = await master.running(agent, **QUARTER)
    await agent.report(job, 1, FREED, gpu_mem_peak_bytes=peak)
    await master.becomes(job, "COMPLETED")
    return job


async def told(master: Master, job: str) -> list[str]:
    """The job's story in words."""
    return [event.text for event in (await master.ask.ShowStory(client_pb2.JobRequest(job_id=job))).events]


async def test_the_second_run_of_a_script_gets_what_the_first_used_and_says_so(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        first = await submit(master)
        assert (first.gpu_mem_bytes, first.gpu_mem_from) == (0, "")
        launch = await agent.receive("launch")
        assert launch.gpus[0].mem_bytes == 10 * GIB
        await agent.report(first.job_id, 1, FREED, gpu_mem_peak_bytes=4 * GIB)
        over = await master.becomes(first.job_id, "COMPLETED")
        assert over.attempts[0].gpu_mem_peak_bytes == 4 * GIB

        tried = await submit(master, dry_run=True)
        second = await submit(master, operation="o1")
        again = await submit(master, operation="o1")
        for reply in (tried, second, again):
            assert (reply.gpu_mem_bytes, reply.gpu_mem_from) == (GIB * 9 // 2, "from its last run")
        assert (tried.job_id, again.job_id) == ("", second.job_id)
        launch = await agent.receive("launch")
        assert (launch.gpus[0].mem_bytes, launch.spec.gpu_mem_bytes) == (GIB * 9 // 2, 0)  # asked for: nothing
        shown = await master.show(second.job_id)
        assert (shown.gpu_mem_bytes, shown.gpu_mem_from) == (GIB * 9 // 2, "from its last run")
        assert "needs 4.5 GiB of GPU memory: from its last run" in await told(master, second.job_id)


async def test_what_a_job_asks_for_itself_wins(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        await run(master, agent, 4 * GIB)
        reply = await submit(master, gpu_mem_bytes=2 * GIB)
        assert (reply.gpu_mem_bytes, reply.gpu_mem_from) == (0, "")
        launch = await agent.receive("launch")
        assert (launch.gpus[0].mem_bytes, launch.spec.gpu_mem_bytes) == (2 * GIB + CONTEXT_BYTES, 2 * GIB)


async def test_what_was_learned_survives_the_master(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await run(master, await master.agent("n1"), 4 * GIB)
    async with a_master(tmp_path) as master:
        await master.agent("n1")
        assert (await submit(master)).gpu_mem_from == "from its last run"


async def test_an_overrun_suspends_the_job_and_gives_it_more_and_its_neighbour_hears_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=1)
        hungry, neighbour = [await master.running(agent, **QUARTER) for _ in range(2)]
        for _ in range(3):  # as every status from now on
            await agent.report(hungry, 1, RUNNING, **OVERRUN)
        stop = await agent.receive("stop")
        assert (stop.job_id, stop.attempt, stop.goes_on) == (hungry, 1, True)
        await agent.report(hungry, 1, FREED, exit=STEPPED_ASIDE, **OVERRUN)
        launch = await agent.receive("launch")
        assert (launch.job_id, launch.attempt, launch.gpus[0].mem_bytes) == (hungry, 2, 22 * GIB)
        assert agent.heard.count("stop") == 1
        shown = await master.show(hungry)
        assert [s.reason for s in shown.suspensions] == [
            "uses 20 GiB of GPU memory, 10 GiB were given to it; it resumes with 22 GiB"
        ]
        assert (await master.show(neighbour)).attempt == 1
        assert (await master.kinds()).count("MemoryOverran") == 1


async def test_an_overrun_that_the_master_missed_is_heard_when_the_node_is_back(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        job = await master.running(await master.agent("n1"), **QUARTER)
    async with a_master(tmp_path) as master:
        status = agent_pb2.AttemptStatus(job_id=job, attempt=1, phase=RUNNING, pid=100, started_at=1000.0, **OVERRUN)
        agent = await master.agent("n1", attempts=[status])
        assert (await agent.receive("stop")).job_id == job


async def test_who_runs_out_of_memory_gets_a_whole_gpu_once(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent, **QUARTER)
        await agent.report(job, 1, FREED, exit=OUT_OF_MEMORY, gpu_mem_peak_bytes=9 * GIB)
        launch = await agent.receive("launch")
        assert (launch.attempt, launch.gpus[0].mem_bytes, launch.gpus[0].share) == (2, 40 * GIB, share(1))
        await agent.report(job, 2, FREED, exit=OUT_OF_MEMORY)
        failed = await master.becomes(job, "FAILED")
        assert (failed.reason, failed.exit_code) == ("out of GPU memory (40 GiB)", 1)
        assert [a.outcome for a in failed.attempts] == [
            "out of GPU memory (10 GiB); it is run again, this once, with a GPU of its own",
            "out of GPU memory (40 GiB)",
        ]


async def test_amounts_that_cannot_be_are_cut_to_what_can(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent, **QUARTER)
        much = 2**64 - 1
        await agent.report(job, 1, RUNNING, overran_gpu="n1-0", overran_bytes=much, allowed_bytes=much)
        await agent.receive("stop")
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE, gpu_mem_peak_bytes=much)
        launch = await agent.receive("launch")
        assert (launch.gpus[0].share, launch.gpus[0].mem_bytes) == (share(1), 40 * GIB)
        events = master.ask.WatchEvents(client_pb2.WatchEventsRequest())
        [overrun] = [json.loads(event.json) async for event in events if event.kind == "MemoryOverran"]
        assert overrun["used_bytes"] == 2**53
