"""A tunnel, and what serves over one, ends with its job."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from ebbtide_cli.channels import tunnel
from ebbtide_protos.v1 import channel_pb2

from tests.client.scripted_master import make_job


@pytest.fixture(autouse=True)
def listening(monkeypatch):
    """The job listens; nobody connects."""

    async def at_once(stub, want) -> None:
        pass

    monkeypatch.setattr(tunnel, "_until_it_listens", at_once)
    monkeypatch.setattr(tunnel, "AGAIN_S", 0.01)


def test_a_tunnel_ends_with_its_job_and_says_how_that_ended(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.changes["17"] = [make_job(state="SUSPENDED"), make_job(state="COMPLETED", reason="completed", end_time=5.0)]
    result = ebb("tunnel", "17", "8000")
    assert (result.code, result.complaint) == (0, "job 17 COMPLETED (completed): the tunnel is closed")
    assert result.out.startswith("127.0.0.1:")


def test_a_tunnel_outlives_a_restart_of_the_master(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.changes["17"] = [make_job(state="RUNNING"), make_job(state="FAILED", reason="exit code 1", end_time=5.0)]
    master.dying = 2
    assert ebb("tunnel", "17", "8000").complaint == "job 17 FAILED (exit code 1): the tunnel is closed"


def test_a_connection_that_its_program_resets_is_closed_at_the_job_too(monkeypatch):
    class Silent:
        async def frames(self):
            await asyncio.Event().wait()
            yield

    async def reset():
        opened, closed = asyncio.Event(), asyncio.Event()

        @asynccontextmanager
        async def channel(stub, want):
            opened.set()
            try:
                yield Silent()
            finally:
                closed.set()

        monkeypatch.setattr(tunnel, "open_channel_over", channel)
        forwarding = tunnel._Forwarding(None, channel_pb2.OpenChannel(job_id="17"))
        async with await asyncio.start_server(forwarding.forward, tunnel.LOOPBACK, 0) as server, asyncio.timeout(10):
            with socket.create_connection(server.sockets[0].getsockname()) as program:
                program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await opened.wait()
            await closed.wait()

    asyncio.run(reset())


def test_tensorboard_ends_with_its_job(ebb, master):
    master.add(make_job(state="RUNNING"))
    over = make_job(state="CANCELLED", reason="unused", end_time=5.0)
    master.changes["17"] = [make_job(state="RUNNING"), over]
    result = ebb("tensorboard", "/runs", "--stop")
    assert result.code == 0
    assert result.err.splitlines()[1:] == ["ebb: job 17 CANCELLED (unused): the tunnel is closed"]
    assert master.sent("Cancel") == []


@pytest.mark.parametrize("verb", ["tunnel", "tensorboard"])
def test_grpc_is_told_to_print_nothing_before_it_is_loaded(verb):
    """It reads that once; what it has to say of a master that goes away ("Got goaway") is nobody's business."""
    code = f"""
import importlib.abc, os, sys
class Look(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_VERBOSITY"))
sys.meta_path.insert(0, Look())
import ebbtide_cli.verbs.{verb}
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "NONE\n"
