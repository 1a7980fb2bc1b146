"""The agent and its master over a real stream."""

import asyncio
import errno
import json
import os
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest
from ebbtide_agent.gpu.backend import Gpu
from ebbtide_agent.link import link, membership, stream
from ebbtide_protos.v1 import agent_pb2
from grpc._cython import cygrpc


class Disk:
    """The disk of the agent's home, which takes nothing while it has an `error`."""

    def __init__(self, monkeypatch, error):
        self.error = error
        self._store = membership.store
        monkeypatch.setattr(membership, "store", self.store)

    def store(self, path, member):
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self._store(path, member)


def launch(job_id, attempt=1):
    return {"launch": agent_pb2.Launch(job_id=job_id, attempt=attempt)}


def stop(job_id, attempt=1, grace_s=30.0):
    return {"stop": agent_pb2.Stop(job_id=job_id, attempt=attempt, grace_s=grace_s)}


async def test_the_agent_says_who_it_is_and_all_that_runs_on_it(world):
    async with world() as here:
        here.attempts.add("17", 3)
        here.attempts.add("18", 1, "EXITED")
        hello = await (await here.master.attached()).welcome()
        assert (hello.node, hello.hostname, hello.boot_id, hello.incarnation) == (
            "n1",
            "host1",
            "boot1",
            "incarnation1",
        )
        assert (hello.cpus, hello.mem_bytes, hello.checkpoint_root_id) == (8.0, 1 << 34, "root1")
        assert (hello.cluster_id, hello.gpu_backend, hello.address) == ("", "none", "127.0.0.1")
        assert hello.version
        assert [(status.job_id, status.attempt) for status in hello.attempts] == [("17", 3), ("18", 1)]


async def test_nothing_is_said_before_the_master_has_welcomed_the_node(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.receive("hello")
        here.link.report(here.attempts.add("17", 1))
        await conversation.send(welcome=agent_pb2.Welcome(cluster_id="c1", epoch=1, heartbeat_s=60))
        assert (await conversation.receive("status")).job_id == "17"


async def test_heartbeats_come_as_often_as_the_master_wants(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(heartbeat_s=0.05)
        started = time.monotonic()
        for _ in range(4):
            await conversation.receive("heartbeat")
        assert 0.1 < time.monotonic() - started < 5


async def test_a_master_that_acknowledges_a_heartbeat_may_change_how_often_they_come(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(heartbeat_s=0.05)
        beat = (await conversation.receive("heartbeat")).beat
        await conversation.send(heard=agent_pb2.Heard(beat=beat, heartbeat_s=60.0))
        with suppress(TimeoutError):  # some are on the way
            for _ in range(200):
                async with asyncio.timeout(1.0):
                    await conversation.receive("heartbeat")
            raise AssertionError("heartbeats come as often as before")


async def test_gpus_that_are_found_later_are_told_by_another_hello(world):
    async with world() as here:
        hello = await (await here.master.attached()).welcome(heartbeat_s=0.05)
        assert (hello.gpu_backend, len(hello.gpus)) == ("none", 0)
        here.gpus.found = (Gpu("GPU-1", 0, "T4", 16 << 30),)
        again = await here.master.attached()
        hello = await again.welcome(heartbeat_s=0.05)
        assert (hello.gpu_backend, [gpu.uuid for gpu in hello.gpus]) == ("nvml", ["GPU-1"])
        assert [gpu.uuid for gpu in (await again.receive("heartbeat")).gpus] == ["GPU-1"]


@pytest.mark.parametrize("heartbeat_s", [float("nan"), 0.0, -1.0])
async def test_a_senseless_heartbeat_neither_stops_the_agent_nor_makes_it_race(world, heartbeat_s):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(heartbeat_s=heartbeat_s)
        started = time.monotonic()
        for _ in range(4):
            await conversation.receive("heartbeat")
        assert time.monotonic() - started > 0.1, "a flood"


async def test_orders_are_carried_out(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        await conversation.send(**launch("17"))
        await conversation.send(**stop("17", grace_s=12.5))
        await conversation.send(forget=agent_pb2.Forget(job_id="17", attempt=1))
        await here.ordered(("launch", "17", 1), ("stop", "17", 1, 12.5), ("forget", "17", 1))


async def test_an_attempt_is_ordered_to_host_memory_and_back(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        swap = agent_pb2.Stop(job_id="17", attempt=1, grace_s=9.0, swap=True, swaps=2)
        await conversation.send(stop=swap)
        await conversation.send(resume=agent_pb2.Resume(job_id="17", attempt=1, swaps=3))
        await here.ordered(("swap", "17", 1, 9.0, 2), ("resume", "17", 1, 3))


async def test_a_slow_launch_holds_up_its_own_stop_and_no_other_attempt(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        here.attempts.hold.clear()
        await conversation.send(**launch("17"))
        await conversation.send(**stop("17"))
        await conversation.send(**stop("18"))
        await here.ordered(("stop", "18", 1, 30.0))
        here.attempts.hold.set()
        await here.ordered(("stop", "18", 1, 30.0), ("launch", "17", 1), ("stop", "17", 1, 30.0))


async def test_an_order_that_fails_does_not_stop_the_next(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        await conversation.send(**stop("broken"))
        await conversation.send(forget=agent_pb2.Forget(job_id="broken", attempt=1))
        await here.ordered(("forget", "broken", 1))


async def test_every_change_of_an_attempt_is_told(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        for phase in ("LAUNCHING", "RUNNING", "EXITED", "FREED"):
            here.link.report(here.attempts.add("17", 1, phase))
            status = await conversation.receive("status")
            assert status.phase == agent_pb2.AttemptPhase.Value(f"ATTEMPT_PHASE_{phase}")


async def test_what_changed_while_the_master_was_away_is_in_the_next_hello(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        await conversation.receive("heartbeat")  # it has read the welcome
        await here.master.stop()
        here.link.report(here.attempts.add("17", 1, "EXITED"))
        await here.master.start()
        hello = await (await here.master.attached()).welcome()
        assert [status.phase for status in hello.attempts] == [agent_pb2.ATTEMPT_PHASE_EXITED]
        assert hello.cluster_id == "c1"


async def test_a_restarted_master_on_this_machine_is_noticed_soon_however_long_it_was_away(world, monkeypatch):
    # As if the pauses had doubled for an hour, with nothing that ends that elsewhere.
    monkeypatch.setattr("ebbtide_agent.link.link._FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr("ebbtide_agent.link.link._LONGEST_PAUSE_S", 3600.0)
    async with world() as here:
        await (await here.master.attached()).welcome()
        await here.master.stop()
        await asyncio.sleep(0.7)
        await here.master.start()
        await (await here.master.attached()).welcome(epoch=2)


async def test_a_master_that_comes_back_elsewhere_is_found(world):
    async with world() as here:
        await (await here.master.attached()).welcome()
        await here.master.stop()
        await here.other_master.start()
        here.wanted = here.other_master
        hello = await (await here.other_master.attached()).welcome(epoch=2)
        assert hello.node == "n1"


async def test_attempts_are_left_alone_while_the_master_is_away(world):
    async with world() as here:
        here.attempts.add("17", 1)
        await (await here.master.attached()).welcome()
        await here.master.stop()
        await asyncio.sleep(0.3)
        assert here.attempts.orders == []
        assert [status.job_id for status in here.attempts.statuses()] == ["17"]


async def test_the_cluster_and_its_highest_epoch_survive_the_agent(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(epoch=7)
        await conversation.receive("heartbeat")
        assert json.loads((here.home / "cluster.json").read_text()) == {"cluster_id": "c1", "epoch": 7}
        assert here.attempts.cluster_id == "c1"
        await here.stop_agent()
        here.start_agent()
        hello = await (await here.master.attached()).welcome(epoch=7)
        assert hello.cluster_id == "c1"


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
async def test_a_restarted_master_is_obeyed_while_the_disk_is_full_and_no_older_one(world, monkeypatch, caplog, full):
    monkeypatch.setattr(link, "_STORE_AGAIN_S", 0.01)
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(epoch=5)
        await conversation.receive("heartbeat")
        disk = Disk(monkeypatch, full)
        await here.master.stop()
        await here.master.start()
        newer = await here.master.attached()
        await newer.welcome(epoch=6)
        await newer.send(**stop("17"))
        await here.ordered(("stop", "17", 1, 30.0))
        newer.ended.set()
        stale = await here.master.attached()
        await stale.welcome(epoch=5)
        with suppress(cygrpc.ExecuteBatchError):  # it may have hung up by now
            await stale.send(**stop("of an older master"))
        again = await here.master.attached()
        await again.welcome(epoch=6)
        await again.send(**stop("18"))
        await here.ordered(("stop", "17", 1, 30.0), ("stop", "18", 1, 30.0))
        assert json.loads((here.home / "cluster.json").read_text())["epoch"] == 5
        assert f"event=membership-not-stored cluster=c1 epoch=6 reason='[Errno {full}]" in caplog.text
        disk.error = None
        async with asyncio.timeout(30):
            while json.loads((here.home / "cluster.json").read_text())["epoch"] == 5:
                await asyncio.sleep(0.01)
        assert json.loads((here.home / "cluster.json").read_text()) == {"cluster_id": "c1", "epoch": 6}


@pytest.mark.parametrize(
    ("cluster_id", "error"),
    [
        pytest.param("c2", errno.ENOSPC, id="another cluster while the disk is full"),
        pytest.param("c1", errno.EIO, id="a disk that fails"),
    ],
)
async def test_what_may_not_be_forgotten_is_stored_before_a_master_is_obeyed(world, monkeypatch, cluster_id, error):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(epoch=5)
        await conversation.receive("heartbeat")
        disk = Disk(monkeypatch, error)
        await here.master.stop()
        await here.master.start()
        newer = await here.master.attached()
        await newer.welcome(cluster_id=cluster_id, epoch=6)
        with suppress(cygrpc.ExecuteBatchError):  # it may have hung up by now
            await newer.send(**stop("17"))
        again = await here.master.attached()
        disk.error = None
        await again.welcome(cluster_id=cluster_id, epoch=6)
        await again.send(**stop("18"))
        await here.ordered(("stop", "18", 1, 30.0))
        assert json.loads((here.home / "cluster.json").read_text()) == {"cluster_id": cluster_id, "epoch": 6}


async def test_a_master_with_a_lower_epoch_gives_no_orders(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(epoch=5)
        await conversation.receive("heartbeat")
        await here.master.stop()
        await here.master.start()
        stale = await here.master.attached()
        await stale.welcome(epoch=4)
        with suppress(cygrpc.ExecuteBatchError):  # it may have hung up by now
            await stale.send(**stop("17"))
        again = await here.master.attached()
        await again.welcome(epoch=5)
        await again.send(**stop("18"))
        await here.ordered(("stop", "18", 1, 30.0))
        assert json.loads((here.home / "cluster.json").read_text())["epoch"] == 5


async def test_a_master_of_another_cluster_is_refused_while_attempts_are_here(world):
    async with world() as here:
        here.attempts.add("17", 1)
        conversation = await here.master.attached()
        await conversation.welcome(cluster_id="c1", epoch=5)
        await conversation.receive("heartbeat")
        await here.master.stop()
        await here.master.start()
        stranger = await here.master.attached()
        await stranger.welcome(cluster_id="c2", epoch=9)
        with suppress(cygrpc.ExecuteBatchError):  # it may have hung up by now
            await stranger.send(**stop("17"))
        await here.master.attached()
        assert here.attempts.orders == []
        assert here.attempts.cluster_id == "c1"


async def test_a_master_of_another_cluster_is_joined_once_nothing_is_left_of_the_old_one(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(cluster_id="c1", epoch=5)
        await conversation.receive("heartbeat")
        await here.master.stop()
        await here.master.start()
        stranger = await here.master.attached()
        await stranger.welcome(cluster_id="c2", epoch=1)
        await stranger.send(**launch("1"))
        await here.ordered(("launch", "1", 1))
        assert (here.attempts.left, here.attempts.cluster_id) == (["c1"], "c2")
        assert json.loads((here.home / "cluster.json").read_text()) == {"cluster_id": "c2", "epoch": 1}


async def test_a_cluster_is_left_before_another_one_is_joined_so_that_none_is_joined_with_what_it_left(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(cluster_id="c1", epoch=5)
        await conversation.receive("heartbeat")
        here.attempts.leave_cluster = Mock(side_effect=[OSError("the disk is full"), None])
        await here.master.stop()
        await here.master.start()
        await (await here.master.attached()).welcome(cluster_id="c2", epoch=1)
        again = await here.master.attached()
        assert json.loads((here.home / "cluster.json").read_text()) == {"cluster_id": "c1", "epoch": 5}
        await again.welcome(cluster_id="c2", epoch=1)
        await again.send(**launch("1"))
        await here.ordered(("launch", "1", 1))
        assert here.attempts.leave_cluster.call_count == 2


async def test_the_cluster_that_a_node_is_of_is_not_left(world):
    async with world() as here:
        for epoch in (1, 2):
            conversation = await here.master.attached()
            await conversation.welcome(cluster_id="c1", epoch=epoch)
            await conversation.receive("heartbeat")
            await here.master.stop()
            await here.master.start()
        assert here.attempts.left == []


async def test_what_an_older_master_ordered_is_not_carried_out_under_a_newer_one(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome(epoch=1)
        here.attempts.hold.clear()
        await conversation.send(**launch("17"))
        await conversation.send(**stop("17"))
        await conversation.send(**stop("seen"))
        await here.ordered(("stop", "seen", 1, 30.0))
        await here.master.stop()
        await here.master.start()
        newer = await here.master.attached()
        await newer.welcome(epoch=2)
        await newer.receive("heartbeat")
        await newer.send(**stop("17", grace_s=1.0))
        here.attempts.hold.set()
        await here.ordered(("stop", "seen", 1, 30.0), ("launch", "17", 1), ("stop", "17", 1, 1.0))


async def test_a_node_that_is_rejected_tries_again_but_slowly(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.receive("hello")
        await conversation.send(rejected=agent_pb2.Rejected(reason="the name is taken"))
        rejected = time.monotonic()
        conversation.ended.set()
        await (await here.master.attached()).welcome()
        assert time.monotonic() - rejected > 0.4


async def test_a_master_that_hangs_up_before_its_welcome_is_tried_again_soon(world, monkeypatch):
    for pause in ("_LONGEST_PAUSE_S", "_FIRST_REFUSED_PAUSE_S", "_LONGEST_REFUSED_PAUSE_S"):
        monkeypatch.setattr(f"ebbtide_agent.link.link.{pause}", 3600.0)
    async with world() as here:
        for _ in range(3):
            (await here.master.attached()).ended.set()
        await (await here.master.attached()).welcome()


async def test_a_log_is_read_in_the_window_that_was_asked_for(world):
    async with world() as here:
        here.attempts.log = b"one\ntwo\nthree\n"
        conversation = await here.master.attached()
        await conversation.welcome()
        request = agent_pb2.ReadLog(request_id=9, job_id="17", attempt=2, offset=4, max_bytes=4)
        await conversation.send(read_log=request)
        answer = await conversation.receive("log")
        assert (answer.request_id, answer.data, answer.end, answer.error) == (9, b"two\n", True, "")
        assert here.attempts.orders == [("read_log", "17", 2, 4, 4, 0.0)]


async def test_a_log_request_that_waits_is_bounded_in_time_and_size(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        request = agent_pb2.ReadLog(request_id=1, job_id="17", attempt=2, max_bytes=1 << 30, wait=True)
        await conversation.send(read_log=request)
        await conversation.receive("log")
        assert here.attempts.orders == [("read_log", "17", 2, 0, stream.LOG_BYTES, stream.LOG_WAIT_S)]


async def test_a_log_that_cannot_be_read_is_answered_with_the_reason(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        await conversation.send(read_log=agent_pb2.ReadLog(request_id=5, job_id="missing", attempt=1))
        answer = await conversation.receive("log")
        assert (answer.request_id, answer.error) == (5, "the log is gone")


async def test_an_order_this_version_does_not_know_is_passed_over(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        await conversation.send()
        await conversation.send(**stop("17"))
        await here.ordered(("stop", "17", 1, 30.0))


async def test_a_peer_that_never_answers_hello_is_left_for_another_try(world, monkeypatch):
    monkeypatch.setattr(link, "WELCOME_TIMEOUT_S", 60.0)
    introduce, waits_s = link._introduce, iter([0.2])

    async def first_for_a_moment(call, hello):
        with monkeypatch.context() as patched:
            patched.setattr(link, "WELCOME_TIMEOUT_S", next(waits_s, 60.0))
            return await introduce(call, hello)

    monkeypatch.setattr(link, "_introduce", first_for_a_moment)
    async with world() as here:
        await here.master.attached()
        await (await here.master.attached()).welcome()


async def test_a_stopping_agent_ends_its_stream(world):
    async with world() as here:
        conversation = await here.master.attached()
        await conversation.welcome()
        await here.stop_agent()
        with pytest.raises(AssertionError, match="the stream ended"):
            await conversation.receive("status")
