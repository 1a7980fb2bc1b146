"""What clients may ask for: each wish with its reply, each mistake with a status and one line."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.model import limits
from ebbtide_master.store import sqlite as stores
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import (
    FREED,
    GIB,
    RUNNING,
    STEPPED_ASIDE,
    a_master,
    make_hello,
    make_spec,
    make_status,
    refused,
    rest,
    share,
    wish,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNKNOWN = grpc.StatusCode.NOT_FOUND
CONFLICT = grpc.StatusCode.FAILED_PRECONDITION
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
WISHES = ["Suspend", "Resume", "Hold", "Release", "Cancel", "Resize", "Change"]


class TestSubmit:
    async def test_a_job_is_shown_as_it_was_submitted(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            spec = make_spec(
                2, name="train", env={"A": "b"}, gpus_max=share(4), gpu_mem_bytes=GIB, cpus=2.5, mem_bytes=GIB,
                job_class=job_pb2.JOB_CLASS_TRIAL_AND_ERROR, priority=7, grace_s=12.5, time_limit_s=3600.0, retries=3,
                suspend=job_pb2.SUSPEND_MODE_NONE, launch=job_pb2.LAUNCH_MODE_DDP, signal="SIGINT",
                signal_target=job_pb2.SIGNAL_TARGET_LEADER, exit_zero=job_pb2.EXIT_ZERO_COMPLETED, weight=2.5,
                group="vision", nodes=1, pool="default",
            )  # fmt: skip
            reply = await master.ask.Submit(client_pb2.SubmitRequest(spec=spec, user="ann", hold=True))
            shown = await master.show(reply.job_id)
            spec.pool, spec.env["A"] = "default", ""  # of the environment, the names
            assert shown.spec == spec
            assert (shown.user, shown.held_by, shown.reason) == ("ann", "user", "held by user")
            assert shown.state == job_pb2.JOB_STATE_PENDING

    async def test_what_is_left_out_has_a_default(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            request = client_pb2.SubmitRequest(spec=job_pb2.JobSpec(command=["x"], workdir="/"))
            spec = (await master.show((await master.ask.Submit(request)).job_id)).spec
            assert (spec.gpus_min, spec.gpus_max) == (share(1), share(1))
            assert (spec.priority, spec.grace_s, spec.signal) == (42, 180.0, "SIGTERM")
            assert (spec.weight, spec.group) == (1.0, "")
            assert not spec.HasField("time_limit_s")

    async def test_the_same_operation_is_the_same_job_also_for_the_next_master(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            first = await master.submit(operation="op-1")
            assert await master.submit(operation="op-1") == first
            together = await asyncio.gather(*(master.submit(operation="op-2") for _ in range(5)))
            assert len(set(together)) == 1
            assert await master.submit() != await master.submit()
        async with a_master(tmp_path) as master:
            assert await master.submit(operation="op-1") == first
            assert await master.submit(operation="op-2") == together[0]
            assert (await master.kinds()).count("JobSubmitted") == 4

    async def test_a_dry_run_checks_and_leaves_nothing(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            reply = await master.ask.Submit(client_pb2.SubmitRequest(spec=make_spec(), dry_run=True))
            assert reply.job_id == ""
            bad = client_pb2.SubmitRequest(spec=make_spec(priority=100), dry_run=True)
            assert (await refused(master.ask.Submit(bad)))[0] is INVALID
            assert "JobSubmitted" not in await master.kinds()

    async def test_more_than_any_node_has_is_refused_once_a_node_is_known(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            await master.submit(64)
            await master.agent("n1", gpus=2)
            for spec, field in [
                (make_spec(3), "--gpus"),
                (make_spec(gpu_mem_bytes=41 * GIB), "--gpu-mem"),
                (make_spec(cpus=9.0), "--cpus"),
                (make_spec(mem_bytes=65 * GIB), "--mem"),
            ]:
                code, words = await refused(master.ask.Submit(client_pb2.SubmitRequest(spec=spec)))
                assert (code, words.split(":")[0]) == (INVALID, field)

    async def test_with_a_full_disk_no_job_is_accepted_and_all_else_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit()
            monkeypatch.setattr(stores, "RESERVED_BYTES", 2**62)
            code, words = await refused(master.submit())
            assert (code, "disk is full" in words) == (FULL, True)
            assert (await master.show(job)).job_id == job
            await wish(master, "Cancel", job)
            assert (await master.show(job)).state == job_pb2.JOB_STATE_CANCELLED
            monkeypatch.undo()
            assert await master.submit() != job

    async def test_there_is_a_limit_of_jobs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "MAX_UNFINISHED_JOBS", 2)
        async with a_master(tmp_path) as master:
            first = await master.submit()
            await master.submit()
            assert (await refused(master.submit()))[0] is FULL
            await wish(master, "Cancel", first)
            await master.submit()


class TestWishes:
    @pytest.mark.parametrize("verb", WISHES)
    async def test_an_unknown_job_is_not_found(self, tmp_path: Path, verb: str) -> None:
        async with a_master(tmp_path) as master:
            for id in ("17", "", "-1", "1\0", "01", "x" * 100_000):
                code, words = await refused(wish(master, verb, id))
                assert code is UNKNOWN
                assert "does not exist" in words or len(id) > 1000

    @pytest.mark.parametrize("verb", WISHES)
    async def test_a_finished_job_cannot_be_changed(self, tmp_path: Path, verb: str) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent)
            await agent.report(job, 1, FREED)
            await master.becomes(job, "COMPLETED")
            code, words = await refused(wish(master, verb, job))
            assert (code, words) == (CONFLICT, f"job {job} is COMPLETED already")

    async def test_a_cancelled_job_may_be_cancelled_again(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit()
            for _ in range(2):
                assert (await wish(master, "Cancel", job)).state == job_pb2.JOB_STATE_CANCELLED
            assert (await master.kinds()).count("CancelRequested") == 1

    async def test_a_wish_that_is_true_already_succeeds(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit(hold=True)
            for verb in ("Hold", "Suspend", "Release", "Release", "Resume", "Resume"):
                await wish(master, verb, job)
            assert (await master.show(job)).held_by == ""

    async def test_suspend_stops_the_attempt_and_resume_starts_the_next(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent, grace_s=33.0)
            assert (await wish(master, "Suspend", job)).state == job_pb2.JOB_STATE_SUSPENDING
            stop = await agent.receive("stop")
            assert (stop.job_id, stop.attempt, stop.grace_s) == (job, 1, 33.0)
            await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
            assert (await master.becomes(job, "SUSPENDED")).held_by == "user"
            await wish(master, "Resume", job)
            assert (await agent.receive("launch")).attempt == 2
            (suspension,) = (await master.show(job)).suspensions
            assert suspension.checkpointed == job_pb2.CHECKPOINTED_YES
            assert suspension.requested <= suspension.exited <= suspension.gpu_free

    async def test_a_drill_starts_the_next_attempt_by_itself_and_tells_what_it_measured(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent)
            await agent.report(job, 1, RUNNING, progress=job_pb2.Progress(step=5))
            assert (await wish(master, "Drill", job)).state == job_pb2.JOB_STATE_SUSPENDING
            await agent.receive("stop")
            await agent.report(job, 1, FREED, exit=STEPPED_ASIDE, progress=job_pb2.Progress(step=6))
            assert (await agent.receive("launch")).attempt == 2
            await agent.report(job, 2, RUNNING)
            await agent.report(job, 2, RUNNING, progress=job_pb2.Progress(step=7))
            shown = await master.becomes(job, "RUNNING")
            while not (suspension := shown.suspensions[0]).HasField("working"):
                shown = await master.show(job)
            assert (suspension.left_step, suspension.working_step) == (6, 7)
            assert suspension.placed <= suspension.resumed <= suspension.working
            assert (shown.proved, shown.HasField("save_s"), shown.HasField("restart_cost_s")) == (True, True, True)

    async def test_cancel_now_leaves_out_the_grace_period(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent)
            await master.ask.Cancel(client_pb2.CancelRequest(job_id=job))
            assert (await agent.receive("stop")).grace_s == 180.0
            await master.ask.Cancel(client_pb2.CancelRequest(job_id=job, now=True))
            assert (await agent.receive("stop")).grace_s == 0.0

    async def test_a_job_is_given_another_priority_or_weight_and_keeps_the_other(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit(weight=2.0)
            for _ in range(2):  # the second time it is true already
                await master.ask.Change(client_pb2.ChangeRequest(job_id=job, priority=5, user="bob"))
            shown = await master.ask.Change(client_pb2.ChangeRequest(job_id=job, weight=3.0, user="bob"))
            assert (shown.spec.priority, shown.spec.weight) == (5, 3.0)
            assert shown.effect == f"job {job}: its weight will have no effect: policy fitgpp does not go by weight"
            told = [event.text for event in (await master.ask.ShowStory(client_pb2.JobRequest(job_id=job))).events]
            assert told[1:] == ["priority 42 → 5 by bob", "weight 2 → 3 by bob"]
        async with a_master(tmp_path) as master:
            spec = (await master.show(job)).spec
            assert (spec.priority, spec.weight) == (5, 3.0)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"priority": 0}, "--priority"),
            ({"priority": 100}, "--priority"),
            ({"weight": 0.0}, "--weight"),
            ({"weight": float("nan")}, "--weight"),
            ({"weight": float("inf")}, "--weight"),
            ({"priority": 5, "weight": -1.0}, "--weight"),
            ({"priority": 5, "user": "two\nlines"}, "user"),
        ],
    )
    async def test_a_change_to_what_cannot_be_is_refused(
        self, tmp_path: Path, change: dict[str, Any], field: str
    ) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit()
            code, words = await refused(master.ask.Change(client_pb2.ChangeRequest(job_id=job, **change)))
            assert (code, words.split(":")[0]) == (INVALID, field)
            assert "JobChanged" not in await master.kinds()

    @pytest.mark.parametrize(
        ("low", "high"),
        [
            (job_pb2.Share(), None),
            (share(0), None),
            (share(2, 3), None),
            (share(2), share(1)),
            (share(1, 17), None),
            (share(5000), None),
            (share(2**32 - 1, 2**32 - 2), None),
            (share(9), None),
        ],
    )
    async def test_a_resize_to_what_cannot_be_is_refused(
        self, tmp_path: Path, low: job_pb2.Share, high: job_pb2.Share | None
    ) -> None:
        async with a_master(tmp_path) as master:
            await master.agent("n1")
            job = await master.submit()
            request = client_pb2.ResizeRequest(job_id=job, gpus_min=low, gpus_max=high)
            code, words = await refused(master.ask.Resize(request))
            assert (code, words.split(":")[0]) == (INVALID, "--gpus")
            assert (await master.show(job)).spec.gpus_min == share(1)


class TestQuiesce:
    async def test_everything_is_stopped_and_counted_until_nothing_is_left(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1", gpus=2)
            jobs = [await master.running(agent) for _ in range(2)]
            waiting = await master.submit()
            stream = master.ask.Quiesce(client_pb2.QuiesceRequest())
            assert (await stream.read()).attempts_left == 2
            for job in jobs:
                stop = await agent.receive("stop")
                assert (stop.job_id, stop.grace_s) == (job, 180.0)
                await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
            counts = [progress.attempts_left for progress in await rest(stream)]
            assert counts[-1] == 0
            assert "launch" not in agent.heard[3:]
            assert (await master.show(waiting)).state == job_pb2.JOB_STATE_PENDING
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1", gpus=2)
            assert {(await agent.receive("launch")).job_id for _ in range(2)} == set(jobs)

    async def test_kill_leaves_out_the_grace_period(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            await master.running(agent)
            stream = master.ask.Quiesce(client_pb2.QuiesceRequest(kill=True))
            assert (await agent.receive("stop")).grace_s == 0.0
            stream.cancel()

    async def test_it_does_not_wait_for_nodes_that_are_silent(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            await master.running(agent)
            stream = master.ask.Quiesce(client_pb2.QuiesceRequest())
            assert (await stream.read()).attempts_left == 1
            agent.vanish()
            assert [progress.attempts_left for progress in await rest(stream)][-1] == 1


async def test_a_cluster_and_its_nodes_are_shown(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", gpus=2)
        job = await master.running(agent, gpus=1)
        info = await master.ask.ShowCluster(client_pb2.ShowClusterRequest())
        assert (info.cluster_id, info.epoch, info.policy) == (master.store.cluster_id, 1, "fitgpp")
        assert (info.recovering, info.jobs_unfinished) == (False, 1)
        node = await master.until_node("n1", "up")
        assert sorted(list(gpu.job_ids) for gpu in node.gpus) == [[], [job]]
        agent.vanish()
        assert (await master.until_node("n1", "down")).reason.startswith("silent for")


async def test_unfinished_jobs_are_listed_and_all_on_request(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        jobs = [await master.submit() for _ in range(3)]
        await wish(master, "Cancel", jobs[1])
        listed = (await master.ask.ListJobs(client_pb2.ListJobsRequest())).jobs
        assert [job.job_id for job in listed] == [jobs[0], jobs[2]]
        listed = (await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True))).jobs
        assert [job.job_id for job in listed] == jobs


async def test_progress_and_checkpoints_are_shown(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        metrics = {"accuracy": 0.5, "bad": float("nan")}
        progress = job_pb2.Progress(step=3, total=9, loss=float("nan"), metrics=metrics, diverged=["loss"])
        checkpoint = job_pb2.Checkpoint(step=2, bytes=2**63, path="/c/step-2", verified=True)
        status = make_status(job, 1, RUNNING, progress=progress, checkpoint=checkpoint)
        stream = master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job]))
        await stream.read()
        await agent.send(status=status)
        shown = await stream.read()
        assert (shown.progress.step, shown.progress.total, shown.progress.HasField("loss")) == (3, 9, False)
        assert (dict(shown.progress.metrics), list(shown.progress.diverged)) == ({"accuracy": 0.5}, ["loss"])
        assert shown.checkpoint == checkpoint
        stream.cancel()


async def test_what_a_connected_node_said_of_its_machine_is_shown(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        hello = make_hello("n1", cgroup="/sys/fs/cgroup/ebb", cpu_limits="booked", mem_limits="watched")
        first, second = hello.gpus
        first.pci_bus_id, first.numa_node, second.parent = "0000:01:00.0", 0, "GPU-x"
        first.peers.add(uuid=second.uuid, link=agent_pb2.GPU_LINK_NVLINK)
        agent = master.connect(hello)
        await agent.register()
        node = await master.until_node("n1", "up")
        assert (node.cgroup, node.cpu_limits, node.mem_limits) == ("/sys/fs/cgroup/ebb", "booked", "watched")
        assert [gpu.info for gpu in node.gpus] == [first, second]
        agent.vanish()
        node = await master.until_node("n1", "down")
        assert (node.HasField("cgroup"), node.cpu_limits, node.mem_limits) == (False, "", "")
