"""The agent as a process: it starts once, ends when asked, and leaves its attempts alone."""

import asyncio
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from unittest.mock import Mock

import pytest
from ebbtide_agent import main
from ebbtide_agent.main import _only_agent
from ebbtide_agent.processes import procfs
from ebbtide_machine.process import boot_id
from ebbtide_protos.v1 import agent_pb2
from ebbtide_protos.v1.job_pb2 import GpuAllocation, JobSpec, Share

from tests.agent.link.conftest import Master
from tests.proof import publish

RUN = """
import sys
from pathlib import Path
from ebbtide_agent.accounts.accounts import AllowedAccounts
from ebbtide_agent.main import AgentOptions, run
home, options = Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:])
sys.exit(run(AgentOptions(home=home, allowed=AllowedAccounts(0), **options)))
"""
# What asks NVML says nothing, and ends with the agent.
STUCK_DRIVER = """
import sys
from ebbtide_agent.gpu import process
process._BOOT = f'''
import pathlib, socket, sys
pathlib.Path({sys.argv[1]!r}, "stuck").touch()
agent = socket.socket(fileno=int(sys.argv[1]))
while agent.recv(1000):
    pass
'''
"""


class Node:
    """A home directory and the agents started on it."""

    def __init__(self, home):
        self.home = home
        self.announcement = home / "nodes" / "n1" / "agent.json"
        self._agents = []

    def start(self, before="", **options):
        arguments = [f"{name}={value}" for name, value in ({"name": "n1", "gpus": "none"} | options).items()]
        agent = subprocess.Popen(
            [sys.executable, "-c", before + "\n" + RUN, str(self.home), *arguments], stderr=subprocess.PIPE, text=True
        )
        self._agents.append(agent)
        return agent

    def serving(self, agent):
        """Wait until this agent has announced itself; returns what it said."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert agent.poll() is None, agent.stderr.read()
            if self.announcement.exists():
                announced = json.loads(self.announcement.read_text())
                if announced["pid"] == agent.pid:
                    return announced
            time.sleep(0.01)
        raise AssertionError("the agent does not serve")

    def close(self):
        for agent in self._agents:
            if agent.poll() is None:
                agent.kill()
            agent.communicate(timeout=20)


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.close()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_asked_to_stop_ends_cleanly(node, signum):
    agent = node.start(gpus="2xT4")
    node.serving(agent)
    agent.send_signal(signum)
    _, log = agent.communicate(timeout=20)
    assert agent.returncode == 0, log
    assert "Traceback" not in log
    assert not node.announcement.exists()


def test_an_agent_says_which_process_it_is(node):
    agent = node.start()
    announced = node.serving(agent)
    assert announced.pop("started_at") == pytest.approx(time.time(), abs=60)
    assert announced.pop("cpu_limits") in ("enforced", "booked")
    assert announced.pop("mem_limits") in ("enforced", "watched")
    assert announced == {
        "pid": agent.pid,
        "starttime": procfs.read_stat(agent.pid).starttime,
        "boot_id": boot_id(),
        "node": "n1",
        "gpu_backend": "none",
    }


def test_a_second_agent_on_the_same_node_is_refused_and_told_who_runs(node):
    first = node.start()
    node.serving(first)
    second = node.start()
    _, log = second.communicate(timeout=20)
    assert second.returncode == 1
    assert f"pid {first.pid}" in log.strip().splitlines()[-1]
    assert first.poll() is None
    assert node.serving(first)["pid"] == first.pid


def test_an_agent_starts_though_somebody_looks_just_then_whether_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("ebbtide_machine.lock.LOOKED_AT_S", 60.0)
    looks = os.open(tmp_path / "agent.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looks, fcntl.LOCK_EX)
    threading.Timer(0.1, os.close, (looks,)).start()
    with _only_agent(tmp_path):
        assert (tmp_path / "agent.lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_an_agent_starts_on_a_full_disk(tmp_path, monkeypatch, caplog, full):
    def no_room(*_):
        raise OSError(full, os.strerror(full))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_room)
        patched.setattr(main, "write_json", no_room)
        with _only_agent(tmp_path):
            main._announce(tmp_path / "agent.json", "n1", "none")
    assert "event=agent-lock-not-filled" in caplog.text
    assert "event=agent-not-announced" in caplog.text


def test_an_agent_that_cannot_write_to_its_disk_for_another_reason_does_not_start(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(OSError, match="Input/output"), _only_agent(tmp_path):
            pass


def test_an_agent_starts_where_another_was_killed(node):
    first = node.start()
    node.serving(first)
    first.kill()
    first.wait()
    second = node.start()
    assert node.serving(second)["pid"] == second.pid


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"gpus": "2xRTX9999"}, "unknown GPU model"),
        ({"name": "../n1"}, "node name"),
        ({"master": "nowhere"}, "HOST:PORT"),
        ({"master": "192.0.2.1:4000"}, "nothing proves who the master at 192.0.2.1:4000 is"),
        ({"master": "127.0.0.1:4000"}, "nothing proves who the master at 127.0.0.1:4000 is"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(node, options, complaint):
    agent = node.start(**options)
    _, log = agent.communicate(timeout=20)
    assert agent.returncode == 2
    assert complaint in log
    assert len(log.strip().splitlines()) == 1


def test_a_driver_that_never_answers_does_not_keep_the_agent_from_stopping(node):
    agent = node.start(before=STUCK_DRIVER, gpus="auto")
    deadline = time.monotonic() + 20
    while not (node.home / "stuck").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    agent.send_signal(signal.SIGTERM)
    _, log = agent.communicate(timeout=20)
    assert agent.returncode == 0, log
    assert not node.announcement.exists()


async def test_an_agent_finds_its_master_again_on_another_port(node):
    agent = node.start(gpus="2xT4")
    for cluster_epoch in (1, 2):
        async with _master(node.home) as master:
            hello = await (await master.attached()).welcome(epoch=cluster_epoch)
            assert (hello.node, hello.gpu_backend) == ("n1", "fake")
            assert [(gpu.index, gpu.model, gpu.healthy) for gpu in hello.gpus] == [(0, "T4", True), (1, "T4", True)]
    assert agent.poll() is None


async def test_an_attempt_outlives_its_agent_and_is_freed_under_the_next(node):
    async with _master(node.home) as master:
        first = node.start(gpus="2xT4")
        conversation = await master.attached()
        hello = await conversation.welcome()
        with _stopped_in_the_end(node, "17"):
            await conversation.send(launch=_launch("17", hello.gpus[0].uuid, node.home))
            running = await _phase(conversation, agent_pb2.ATTEMPT_PHASE_RUNNING)
            first.send_signal(signal.SIGTERM)
            await asyncio.to_thread(first.wait, 20)
            os.kill(running.pid, 0)

            node.start(gpus="2xT4")
            conversation = await master.attached()
            hello = await conversation.welcome()
            assert [(status.job_id, status.pid) for status in hello.attempts] == [("17", running.pid)]
            assert await _holders(conversation) == [("17", 1)]
            await conversation.send(stop=agent_pb2.Stop(job_id="17", attempt=1, grace_s=30.0))
            freed = await _phase(conversation, agent_pb2.ATTEMPT_PHASE_FREED)
            assert list(freed.dirty_gpus) == []
            assert freed.exit.stop_requested


@asynccontextmanager
async def _master(home):
    """A master that this home's agents find, on a port of its own."""
    master = Master(home)
    await master.start()
    publish(home)
    try:
        yield master
    finally:
        await master.stop()


def _launch(job_id, gpu, workdir):
    return agent_pb2.Launch(
        job_id=job_id,
        attempt=1,
        spec=JobSpec(
            name="sleeper",
            command=[sys.executable, "-Sc", "import time; time.sleep(60)"],
            workdir=str(workdir),
            gpus_min=Share(numerator=1, denominator=1),
            gpus_max=Share(numerator=1, denominator=1),
            gpu_mem_bytes=1 << 30,
            cpus=1,
            grace_s=5,
            signal="SIGTERM",
        ),
        gpus=[GpuAllocation(uuid=gpu, share=Share(numerator=1, denominator=1), mem_bytes=1 << 30)],
        num_nodes=1,
        world_size=1,
    )


async def _phase(conversation, phase):
    while (status := await conversation.receive("status")).phase != phase:
        assert status.phase != agent_pb2.ATTEMPT_PHASE_REFUSED, status.refusal
    return status


async def _holders(conversation):
    heartbeat = await conversation.receive("heartbeat")
    return [(process.job_id, process.attempt) for gpu in heartbeat.gpus for process in gpu.processes]


@contextmanager
def _stopped_in_the_end(node, job_id):
    """Nothing of the job is left, whatever became of the test."""
    try:
        yield
    finally:
        for path in (node.home / "nodes" / "n1" / "gpus" / "processes").glob("*.json"):
            stat = procfs.read_stat(int(path.stem))
            if stat is not None and stat.starttime == json.loads(path.read_text())["starttime"]:
                os.kill(stat.pid, signal.SIGKILL)
