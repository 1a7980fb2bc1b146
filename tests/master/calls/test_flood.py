"""One user who asks for everything at once: bounded, and nobody else notices."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.model import limits
from ebbtide_master import service
from ebbtide_master.calls import edge
from ebbtide_master.config.file import Config
from ebbtide_master.config.limits import UserBounds
from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.throttle.rates import RateLimit, UserLimits
from ebbtide_protos import RETRY_KEY
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from tests.master import world
from tests.master.world import DEADLINE_S, a_master, make_spec, refused, rest

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ANN, EVE = (("user", "ann"),), (("user", "eve"),)


class NamedGate(world.OpenGate):
    """Takes everybody for whom they say they are, as a user."""

    def admit(self, method: str, context: Any) -> Caller:
        return Caller(dict(context.invocation_metadata()).get("user", ""), Role.USER)

    def allow(self, method: str, message: Any, caller: Caller) -> None:
        if "user" in message.DESCRIPTOR.fields_by_name:
            message.user = caller.user


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "OpenGate", NamedGate)


def submit(tasks: int = 0) -> client_pb2.SubmitRequest:
    return client_pb2.SubmitRequest(spec=make_spec(), tasks=[client_pb2.ArrayTask(index=i) for i in range(tasks)])


async def test_who_submits_too_fast_is_told_when_to_try_again_and_others_are_served(tmp_path: Path) -> None:
    slow = Config(bounds=UserBounds(rates=UserLimits(calls=RateLimit(0.01, 3), jobs=RateLimit(0.5, 10))))
    async with a_master(tmp_path, config=slow) as master:
        for _ in range(3):
            await master.ask.Submit(submit(), metadata=EVE)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await master.ask.Submit(submit(), metadata=EVE)
        assert error.value.code() is EXHAUSTED
        assert error.value.details().startswith("eve submits or changes too much at a time: try again in ")
        assert 0 < float(dict(error.value.trailing_metadata())[RETRY_KEY]) <= 100.0
        assert (await master.ask.ListJobs(client_pb2.ListJobsRequest(), metadata=EVE)).jobs
        for _ in range(3):
            await master.ask.Submit(submit(), metadata=ANN)


async def test_an_array_costs_as_much_as_its_tasks(tmp_path: Path) -> None:
    slow = Config(bounds=UserBounds(rates=UserLimits(jobs=RateLimit(0.5, 10))))
    async with a_master(tmp_path, config=slow) as master:
        await master.ask.Submit(submit(8), metadata=EVE)
        code, words = await refused(master.ask.Submit(submit(8), metadata=EVE))
        assert (code, words[:52]) == (EXHAUSTED, "eve submits too many jobs at a time (8 more): try ag")
        await master.ask.Submit(submit(8), metadata=ANN)


async def test_an_array_that_is_requeued_costs_as_much_as_its_tasks(tmp_path: Path) -> None:
    slow = Config(bounds=UserBounds(rates=UserLimits(jobs=RateLimit(0.5, 10))))
    async with a_master(tmp_path, config=slow) as master:
        array = (await master.ask.Submit(submit(8), metadata=EVE)).job_id
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=array), metadata=EVE)
        code, words = await refused(master.ask.Requeue(client_pb2.RequeueRequest(job_id=array), metadata=EVE))
        assert (code, words[:52]) == (EXHAUSTED, "eve submits too many jobs at a time (8 more): try ag")
        assert len((await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True), metadata=EVE)).jobs) == 8


async def test_one_users_jobs_do_not_fill_the_queue(tmp_path: Path) -> None:
    async with a_master(tmp_path, config=Config(bounds=UserBounds(queued=5))) as master:
        await master.ask.Submit(submit(5), metadata=EVE)
        words = "eve has 5 unfinished jobs: one more is over the limit of 5"
        assert await refused(master.ask.Submit(submit(), metadata=EVE)) == (EXHAUSTED, words)
        await master.ask.Submit(submit(), metadata=ANN)


async def test_one_users_commands_do_not_fill_the_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_TEXT_BYTES_PER_USER", 500_000)
    async with a_master(tmp_path) as master:
        large = submit(4)
        large.spec.command[:] = ["x" * 100_000]
        array = (await master.ask.Submit(large, metadata=EVE)).job_id
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=array), metadata=EVE)
        most = "the commands, scripts and environments of the jobs of eve would come to more than 500000 bytes"
        for again in (
            master.ask.Submit(large, metadata=EVE),
            master.ask.Requeue(client_pb2.RequeueRequest(job_id=array), metadata=EVE),
        ):
            assert await refused(again) == (EXHAUSTED, f"{most}: remove some that are over (ebb rm)")
        await master.ask.Submit(large, metadata=ANN)


async def test_one_users_environments_do_not_fill_the_memory_also_after_a_restart(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_TEXT_BYTES_PER_USER", 500_000)
    large = submit(4)
    large.spec.env.update(dict.fromkeys("AB", "x" * 100_000))
    most = "the commands, scripts and environments of the jobs of eve would come to more than 500000 bytes"
    full = (EXHAUSTED, f"{most}: remove some that are over (ebb rm)")
    async with a_master(tmp_path) as master:
        for _ in range(2):
            array = (await master.ask.Submit(large, metadata=EVE)).job_id
            await master.ask.Cancel(client_pb2.CancelRequest(job_id=array), metadata=EVE)
        assert await refused(master.ask.Submit(large, metadata=EVE)) == full
    async with a_master(tmp_path) as master:
        again = client_pb2.RequeueRequest(job_id=array)
        assert await refused(master.ask.Requeue(again, metadata=EVE)) == full
        await master.ask.Submit(submit(4), metadata=EVE)
        await master.ask.Submit(large, metadata=ANN)


async def test_one_users_streams_are_counted_and_make_room_when_they_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS_PER_USER", 3)
    async with a_master(tmp_path) as master:
        await master.ask.Submit(submit(), metadata=ANN)
        streams = [master.ask.WatchJobs(client_pb2.WatchJobsRequest(), metadata=EVE) for _ in range(3)]
        for stream in streams:
            await stream.read()
        words = "eve has 3 streams open already, which is the limit"
        more = master.ask.WatchJobs(client_pb2.WatchJobsRequest(), metadata=EVE)
        assert await refused(more.read()) == (EXHAUSTED, words)
        assert (await master.ask.WatchJobs(client_pb2.WatchJobsRequest(), metadata=ANN).read()).job_id == "1"
        streams[0].cancel()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                again = master.ask.WatchJobs(client_pb2.WatchJobsRequest(), metadata=EVE)
                with suppress(grpc.aio.AioRpcError):  # the end of the other is on its way
                    assert (await again.read()).job_id == "1"
                    break


async def test_who_does_not_read_is_cut_off_and_keeps_nobody_waiting(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(edge, "SLOW_READER_S", 6.0)  # others read for once in this time, also where all CPUs are busy
    async with a_master(tmp_path) as master:
        many = submit(3_000)
        many.spec.command[:] = ["x" * 1_000]
        await master.ask.Submit(many, metadata=ANN)
        # What arrives is not kept for it either, whatever the line could take.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        channel = grpc.aio.insecure_channel(master.target, options)
        lazy = client_pb2_grpc.ClientServiceStub(channel).WatchJobs(client_pb2.WatchJobsRequest(), metadata=ANN)
        await lazy.read()
        other = master.ask.WatchJobs(client_pb2.WatchJobsRequest(), metadata=ANN)
        for _ in range(3_000):
            await asyncio.wait_for(other.read(), DEADLINE_S)
        watchers = master.service.loop._changes._watchers
        async with asyncio.timeout(DEADLINE_S):
            while len(watchers) > 1:  # what it wanted is not kept, though it reads nothing still
                await asyncio.sleep(0.01)
        assert await refused(rest(lazy)) == (EXHAUSTED, "nothing of this stream was read for 6 s: it was cut off")
        await channel.close()


async def test_idle_connections_are_closed_and_an_agent_is_served_meanwhile(tmp_path: Path, monkeypatch) -> None:
    options = dict(service._SERVER_OPTIONS)
    options |= {"grpc.max_allowed_incoming_connections": 30, "grpc.server_handshake_timeout_ms": 5000}
    monkeypatch.setattr(service, "_SERVER_OPTIONS", list(options.items()))
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        with ExitStack() as stack:
            idle = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(60)]
            for one in idle:
                one.setblocking(False)
                one.connect_ex(master.target.removeprefix("unix:"))
            job = await master.submit()
            assert (await agent.receive("launch")).job_id == job
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(DEADLINE_S):  # all of them are closed: there is room for whoever comes
                for one in idle:
                    await _closed(loop, one)
        channel = grpc.aio.insecure_channel(master.target, [("grpc.use_local_subchannel_pool", 1)])
        async with channel:
            await asyncio.wait_for(channel.channel_ready(), DEADLINE_S)


async def _closed(loop: asyncio.AbstractEventLoop, one: socket.socket) -> None:
    try:
        while await loop.sock_recv(one, 4096):
            pass
    except ConnectionError:
        return
