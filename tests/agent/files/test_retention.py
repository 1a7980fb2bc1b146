"""What finished jobs left goes when the administrator says so, and nothing else ever does."""

import asyncio
from pathlib import Path

import pytest
from ebbtide_agent.files.exchange import Unanswered
from ebbtide_agent.files.retention import JobFiles, Retention, RetentionTask, superfluous
from ebbtide_protos.v1 import agent_pb2

DAY_S = 86400.0
CLUSTER = "c1"


class Master:
    """Knows since when jobs are over."""

    def __init__(self, **ended_ago_s: float) -> None:
        self.ended = {job.removeprefix("job"): ago_s for job, ago_s in ended_ago_s.items()}
        self.removed: list[str] = []
        self.jobs_removed = asyncio.Event()

    async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
        ended = {job: self.ended[job] for job in request.ended_of if job in self.ended}
        removed = [job for job in self.removed if job in request.ended_of]
        return agent_pb2.CheckpointData(ended_ago_s=ended, removed=removed)


class NobodyThere:
    jobs_removed = asyncio.Event()

    async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
        raise Unanswered("the master is away")


def checkpoint(root: Path, job: str, size: int = 100_000) -> Path:
    folder = root / CLUSTER / job / "attempt-1" / "step-000000000001"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"x" * size)
    return folder


def tidy(tmp_path: Path, master: Master | NobodyThere, retention: Retention) -> list[str]:
    tidying = RetentionTask(tmp_path / "node", tmp_path / "root", master, retention)
    return asyncio.run(tidying.tidy(CLUSTER))


@pytest.mark.parametrize(
    ("retention", "gone"),
    [
        (Retention(), []),
        (Retention(seconds=10 * DAY_S), ["1"]),
        (Retention(seconds=DAY_S), ["1", "2"]),
        (Retention(quota_bytes=40), []),
        (Retention(quota_bytes=39), ["1"]),
        (Retention(quota_bytes=1), ["1", "2"]),
        (Retention(seconds=10 * DAY_S, quota_bytes=29), ["1", "2"]),
    ],
)
def test_the_longest_ended_go_first_and_unfinished_jobs_never(retention: Retention, gone: list[str]) -> None:
    left = {"1": JobFiles(10, 20 * DAY_S), "2": JobFiles(10, 2 * DAY_S), "3": JobFiles(20)}
    assert superfluous(left, retention) == gone


def test_checkpoints_and_logs_of_a_job_that_ended_long_ago_go_and_its_output_stays(tmp_path: Path) -> None:
    old, young = checkpoint(tmp_path / "root", "1"), checkpoint(tmp_path / "root", "2")
    unfinished = tmp_path / "root" / CLUSTER / "1" / ".attempt-2-copy"
    output = tmp_path / "root" / CLUSTER / "1" / "output"
    for folder in (unfinished, output):
        folder.mkdir()
    for job in ("1", "2"):
        place = tmp_path / "node" / "attempts" / f"{job}.1"
        place.mkdir(parents=True)
        (place / "forgotten").touch()
    assert tidy(tmp_path, Master(job1=9 * DAY_S, job2=DAY_S), Retention(seconds=7 * DAY_S)) == ["1"]
    assert [folder.exists() for folder in (old, unfinished, young, output)] == [False, False, True, True]
    assert [place.name for place in (tmp_path / "node" / "attempts").iterdir()] == ["2.1"]


def test_the_steps_and_scripts_of_a_job_go_with_its_checkpoints(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "root", "1").parents[1]
    (folder / "steps-1").mkdir()
    (folder / "steps-1" / "end").touch()
    (folder / "script-1").write_text("#!/bin/sh\n")
    assert tidy(tmp_path, Master(job1=9 * DAY_S), Retention(seconds=7 * DAY_S)) == ["1"]
    assert not folder.exists()


def test_what_users_have_removed_goes_as_soon_as_that_is_known_and_nothing_else(tmp_path: Path) -> None:
    folders = {job: checkpoint(tmp_path / "root", job) for job in ("1", "2", "3.0")}
    output = tmp_path / "root" / CLUSTER / "1" / "output"
    output.mkdir()
    for name in ("1.1", "1.2", "2.1", "3.0.1"):
        place = tmp_path / "node" / "attempts" / name
        place.mkdir(parents=True)
        (place / "output.log").write_text("a line")
        (place / "forgotten").touch()
    (tmp_path / "node" / "attempts" / "1.2" / "forgotten").unlink()  # the master has not heard of its end
    master = Master(job1=1.0, job2=1.0)
    master.removed = ["1", "3.0"]

    class Cluster:
        cluster_id = CLUSTER

    async def told() -> None:
        running = asyncio.create_task(
            RetentionTask(tmp_path / "node", tmp_path / "root", master, Retention()).run(Cluster())
        )
        master.jobs_removed.set()
        async with asyncio.timeout(30):
            while folders["3.0"].exists() or (tmp_path / "node" / "attempts" / "3.0.1").exists():
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(told())
    assert [folder.exists() for folder in folders.values()] == [False, True, False]
    assert output.exists()
    assert sorted(place.name for place in (tmp_path / "node" / "attempts").iterdir()) == ["1.2", "2.1"]


def test_the_node_is_tidied_in_time_however_often_users_remove_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide_agent.files.retention.PERIOD_S", 0.5)
    old = checkpoint(tmp_path / "root", "1")
    master = Master(job1=9 * DAY_S)

    class Cluster:
        cluster_id = CLUSTER

    async def told_again_and_again() -> None:
        tidying = RetentionTask(tmp_path / "node", tmp_path / "root", master, Retention(seconds=DAY_S))
        running = asyncio.create_task(tidying.run(Cluster()))
        async with asyncio.timeout(30):
            while old.exists():
                master.jobs_removed.set()
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(told_again_and_again())


def test_under_a_quota_nothing_goes_of_jobs_that_the_master_does_not_call_finished(tmp_path: Path) -> None:
    kept = [checkpoint(tmp_path / "root", job) for job in ("1", "2")]
    gone = checkpoint(tmp_path / "root", "3")
    assert tidy(tmp_path, Master(job3=1.0), Retention(quota_bytes=1)) == ["3"]
    assert all(folder.exists() for folder in kept)
    assert not gone.exists()


def test_what_a_job_puts_into_its_output_does_not_count_towards_the_quota(tmp_path: Path) -> None:
    kept = [checkpoint(tmp_path / "root", job) for job in ("1", "2")]
    output = tmp_path / "root" / CLUSTER / "1" / "output"
    output.mkdir()
    (output / "results.bin").write_bytes(b"x" * 1_000_000)
    assert tidy(tmp_path, Master(job1=2.0, job2=1.0), Retention(quota_bytes=500_000)) == []
    assert all(folder.exists() for folder in kept)


def test_while_the_master_is_away_nothing_goes(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path / "root", "1")
    with pytest.raises(Unanswered):
        tidy(tmp_path, NobodyThere(), Retention(seconds=0.0, quota_bytes=0))
    assert kept.exists()


def test_a_link_in_place_of_a_job_is_not_followed(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere", "1")
    (tmp_path / "root" / CLUSTER).mkdir(parents=True)
    (tmp_path / "root" / CLUSTER / "1").symlink_to(elsewhere.parents[1])
    assert tidy(tmp_path, Master(job1=DAY_S), Retention(seconds=0.0)) == []
    assert elsewhere.exists()
