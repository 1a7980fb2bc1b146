"""A real master on a disk that fails, fills up, or is slow: nothing is promised that is not there afterwards."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2_grpc, client_pb2, client_pb2_grpc

from tests.durability.traced import Master, a_master, injecting, jobs_in, submit
from tests.master.world import Agent, make_hello, make_spec
from tests.proof import proven

pytestmark = pytest.mark.strace
SUBMITS = 12
SLOW_S = 2.0
SYNCS = 31
"""Of a master that starts, and takes `SUBMITS`."""
AFTER_START = 19
"""Syncs; a master that starts makes fewer."""


def submits(master: Master) -> tuple[list[str], tuple[int, str]]:
    """Submit until the master fails, or `SUBMITS` times; what it acknowledged, and how it ended."""
    acknowledged: list[str] = []
    record = master.ready()
    if record is None:
        return acknowledged, master.end()
    with master.client(record) as stub:
        while len(acknowledged) < SUBMITS:
            try:
                acknowledged += [submit(stub)]
            except grpc.RpcError:
                return acknowledged, master.end()
    return acknowledged, master.stop(record)


def fail_at(home: Path, call: str, error: str, number: int) -> int:
    """Have the master meet that error once, or always if it is a full disk; how many submits it acknowledged."""
    with a_master(home, injecting(call, f"error={error}:when={number}")) as master:
        acknowledged, (code, err) = submits(master)
    assert "Traceback" not in err
    if code == 0:
        assert len(acknowledged) == SUBMITS
    else:
        assert code in (1, 70), (code, err)
        assert "journal failed" in err
    known = jobs_in(home)
    assert set(acknowledged) <= known
    assert len(known - set(acknowledged)) <= 1
    return len(acknowledged)


@pytest.mark.parametrize("number", [pytest.param(7, marks=pytest.mark.slow), 22])
def test_a_commit_that_the_disk_fails_ends_the_master_and_nothing_acknowledged_is_lost(
    tmp_path: Path, number: int
) -> None:
    fail_at(tmp_path, "fdatasync", "EIO", number)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whichever_sync_fails_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """Those of a start, and of each submit; SQLite makes nothing of a directory's that fails."""
    ended = 0
    for number in range(1, SYNCS + 1):
        (home := tmp_path / str(number)).mkdir()
        ended += fail_at(home, "fdatasync", "EIO", number) < SUBMITS
    assert ended > SUBMITS
    print(f"{SYNCS} syncs failed and ended {ended} masters, 0 jobs lost")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_whichever_write_fails_nothing_acknowledged_is_lost(tmp_path: Path, error: str) -> None:
    for number in range(1, 160, 7):
        (home := tmp_path / str(number)).mkdir()
        fail_at(home, "pwrite64", error, number)


@pytest.mark.slow
def test_a_write_for_which_there_is_no_room_is_made_in_the_reserve(tmp_path: Path) -> None:
    """The first of a batch that fails is tried again; the reserve is given up for that."""
    with a_master(tmp_path, injecting("pwrite64", "error=ENOSPC:when=70")) as master:
        acknowledged, (code, err) = submits(master)
    assert (code, len(acknowledged), "disk=full" in err) == (0, SUBMITS, True), err
    assert jobs_in(tmp_path) == set(acknowledged)


def test_a_slow_disk_delays_submits_and_no_heartbeat(tmp_path: Path) -> None:
    delayed = injecting("fdatasync", f"delay_enter={int(SLOW_S * 1e6)}:when={AFTER_START}+")
    with a_master(tmp_path, delayed) as master:
        record = master.ready()
        assert record is not None, master.end()
        with home_socket.reached(tmp_path) as target:
            asyncio.run(submits_and_heartbeats(tmp_path, target))


async def submits_and_heartbeats(home: Path, target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        clients: Any = client_pb2_grpc.ClientServiceStub(proven(channel, home))
        agent = Agent(agent_pb2_grpc.AgentServiceStub(proven(channel, home)), make_hello("n1"))
        await agent.register()
        beating, began = asyncio.create_task(beat(agent)), time.monotonic()
        for _ in range(3):
            request = client_pb2.SubmitRequest(spec=make_spec(), user="ann", hold=True)
            await clients.Submit(request, timeout=30)
        assert time.monotonic() - began >= 3 * SLOW_S
        [node] = (await clients.ListNodes(client_pb2.ListNodesRequest(), timeout=30)).nodes
        kinds = [event.kind async for event in clients.WatchEvents(client_pb2.WatchEventsRequest())]
        assert (node.state, beating.done(), "NodeLost" in kinds) == ("up", False, False)
        beating.cancel()


async def beat(agent: Agent) -> None:
    """Send a heartbeat again and again; each must be taken at once, whatever the disk does."""
    while True:
        async with asyncio.timeout(SLOW_S):
            await agent.send(heartbeat={})
        await asyncio.sleep(0.02)
