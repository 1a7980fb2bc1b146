"""Environments of jobs: in the vault, with every launch, and nowhere else."""

import json
from pathlib import Path

from ebbtide_core.events import JobSubmitted
from ebbtide_core.events.codec import encode
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.master.world import FREED, REFUSED, Master, a_master, make_spec, refused, share

SECRET = "canary-7f3a"


async def submit_array(master: Master) -> str:
    tasks = [client_pb2.ArrayTask(index=index, params={"lr": f".{index}"}) for index in (1, 2)]
    spec = make_spec(command=["train", "{lr}"], env={"KEY": SECRET})
    return str((await master.ask.Submit(client_pb2.SubmitRequest(spec=spec, tasks=tasks))).job_id)


def kept(home: Path) -> dict[str, dict[str, str]]:
    store = SqliteStore(home / "journal.db")
    entries = store.vault.read(EntryKind.ENVIRONMENT)
    store.close()
    return {job: json.loads(text) for job, text in entries.items()}


def journal(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("journal.db*"))


async def test_a_launch_brings_the_environment_and_no_client_and_no_journal_has_it(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.submit(env={"KEY": SECRET})
        assert dict((await agent.receive("launch")).spec.env) == {"KEY": SECRET}
        shown = [await master.show(job), *(await master.ask.ListJobs(client_pb2.ListJobsRequest())).jobs]
        events = [event async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest())]
        assert SECRET not in str(shown) + str(events)
        assert dict(shown[0].spec.env) == {"KEY": ""}
    assert SECRET.encode() not in journal(tmp_path)
    assert kept(tmp_path) == {job: {"KEY": SECRET}}


async def test_it_is_there_after_a_restart_of_the_master(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.submit(env={"KEY": SECRET})
    async with a_master(tmp_path) as master:
        launch = await (await master.agent("n1")).receive("launch")
        assert dict(launch.spec.env) == {"KEY": SECRET}


async def test_the_tasks_of_an_array_share_one_entry_beside_their_params(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        array = await submit_array(master)
        launches = [await agent.receive("launch") for _ in range(2)]
        assert {launch.job_id: dict(launch.spec.env) for launch in launches} == {
            f"{array}.{index}": {"KEY": SECRET, "EBB_PARAM_LR": f".{index}"} for index in (1, 2)
        }
    assert kept(tmp_path) == {array: {"KEY": SECRET}}
    assert SECRET.encode() not in journal(tmp_path)


async def test_a_job_that_is_over_is_submitted_again_with_the_same(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        old = await master.running(agent, env={"KEY": SECRET})
        await agent.report(old, 1, FREED)
        await master.becomes(old, "COMPLETED")
        again = (await master.ask.Requeue(client_pb2.RequeueRequest(job_id=old))).again_as or "2"
        launch = await agent.receive("launch")
        assert (launch.job_id, dict(launch.spec.env)) == (again, {"KEY": SECRET})
    assert kept(tmp_path) == {old: {"KEY": SECRET}, again: {"KEY": SECRET}}


async def test_tasks_that_failed_are_submitted_again_with_the_same(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        array = await submit_array(master)
        for _ in range(2):
            launch = await agent.receive("launch")
            await agent.report(launch.job_id, 1, REFUSED, refusal="no", refusal_cause=1)
        await master.becomes(array, "FAILED")
        await master.ask.Requeue(client_pb2.RequeueRequest(job_id=array, failed=True))
        launch = await agent.receive("launch")
        assert dict(launch.spec.env) == {"KEY": SECRET, "EBB_PARAM_LR": ".1"}


async def test_what_a_crash_before_the_journals_commit_has_left_is_swept(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    store.vault.put(EntryKind.ENVIRONMENT, {"1": json.dumps({"KEY": SECRET})}).result()
    store.close()
    async with a_master(tmp_path) as master:
        assert await master.submit() == "1"
        launch = await (await master.agent("n1")).receive("launch")
        assert dict(launch.spec.env) == {}
    assert kept(tmp_path) == {}


async def test_a_job_that_is_refused_leaves_its_environment_to_nobody(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        _, words = await refused(master.submit(env={"KEY": SECRET}, after=[job_pb2.Dependency(job_id="77")]))
        assert "77" in words
        await master.submit(gpus=1)
        assert dict((await agent.receive("launch")).spec.env) == {}
    assert kept(tmp_path) == {}


async def test_a_journal_from_before_there_was_a_vault_still_has_its_environments(tmp_path: Path) -> None:
    spec = JobSpec(command=("train",), workdir="/", env={"KEY": SECRET})
    assert SECRET in json.dumps(encode(spec))
    store = SqliteStore(tmp_path / "journal.db")
    store.append([(1.0, JobSubmitted(JobId("1"), spec, "ann"))]).result()
    async with a_master(tmp_path, store=store) as master:
        launch = await (await master.agent("n1")).receive("launch")
        assert dict(launch.spec.env) == {"KEY": SECRET}
        events = [event async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest())]
        assert SECRET not in str(await master.show("1")) + str(events)
        assert launch.gpus[0].share == share(1)
