"""Jobs on shares of a GPU under real supervisors, with an MPS server between them that may fail."""

import signal
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
from ebbtide_agent.gpu.backend import Gpu, GpuReading, GpuSettings
from ebbtide_agent.mps import sharing
from ebbtide_agent.mps.control import ControlFailed
from ebbtide_agent.mps.daemon import MpsDaemon
from ebbtide_agent.mps.sharing import GpuSharing
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import GIB, Node, python

UUID = "GPU-8a4f5b6c"
CLIENT = """
import os, pathlib, socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/server")
server.sendall(b"connect\\n")
print(server.recv(100).decode().strip(), flush=True)
if sys.argv[1] in ("bad", "aborts"):
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.005)
    server.sendall(b"bad access\\n")
if sys.argv[1] == "crashes":
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.005)
    sys.exit(3)
server.recv(100)
if sys.argv[1] == "aborts":
    os.abort()
if sys.argv[1] == "hangs":
    time.sleep(600)
sys.exit("CUDA error: the launch timed out and was terminated")
"""
WAITS = "import os, time\nprint(os.environ.get('CUDA_MPS_PIPE_DIRECTORY'), flush=True)\ntime.sleep(600)"


def part(numerator=1, denominator=4, uuid=UUID):
    share = job_pb2.Share(numerator=numerator, denominator=denominator)
    return (job_pb2.GpuAllocation(uuid=uuid, share=share, mem_bytes=6 * GIB),)


class World:
    """A node with one GPU, and what was started on it."""

    def __init__(self, place, binary):
        self.place = place
        self.sharing = GpuSharing(place / "node", binary, look_s=0.02)
        self.node = Node(place, sharing=self.sharing)
        self.attempt = 1

    async def client(self, job_id, does="works", attempt=1, **options):
        options.setdefault("gpus", part())
        command = python(CLIENT, does, str(self.place / "go"))
        await self.node.launch(command, job_id=job_id, attempt=attempt, **options)
        return await self.node.running(job_id, attempt, line="connected")

    async def other(self, job_id, **options):
        options.setdefault("gpus", part())
        await self.node.launch(python(WAITS), job_id=job_id, **options)
        return await self.node.running(job_id, line="\n")

    def go(self):
        (self.place / "go").touch()

    @property
    def daemon(self):
        return self.sharing._gpus[UUID].daemon

    async def no_daemon(self):
        await self.node.until(lambda: self.daemon is None)

    def reading(self):
        return self.sharing.without_server(GpuReading(UUID, processes=()))


@pytest.fixture
def world(place, binary, monkeypatch):
    """A node and its agent for the length of a `with`; with `leave`, what runs then goes on."""
    # On a busy machine much time lies between the end of an attempt and what its server says of it.
    monkeypatch.setattr("ebbtide_agent.mps.sharing._CAUSE_S", 60.0)

    @asynccontextmanager
    async def make(leave=False):
        found = World(place, binary)
        try:
            await found.node.attempts.start()
            await found.sharing.set_gpus((Gpu(UUID, 0, "A", 24 * GIB),), lambda _: GpuSettings(), fake=False)
            yield found
        finally:
            if not leave:
                await found.node.end_all()
                await found.node.until(lambda: all(gpu.daemon is None for gpu in found.sharing._gpus.values()))
            await found.node.attempts.close()

    return make


async def test_shares_of_a_gpu_compute_through_one_server_that_ends_after_the_last(world):
    async with world() as lab:
        one = await lab.client("1")
        two = await lab.client("2")
        assert (one.sharing, two.sharing) == ("mps", "mps")
        daemon = lab.daemon
        assert sorted(daemon.clients()) == sorted([one.pid, two.pid])
        await lab.node.stop(0.0, "1")
        assert daemon.failure() == ""
        await lab.node.stop(0.0, "2")
        await lab.no_daemon()
        assert not any(process.is_alive() for process in daemon.processes)


async def test_a_share_that_could_not_be_launched_holds_no_place(world, monkeypatch):
    async def fails(*_):
        raise RuntimeError("can't start new thread")

    async with world() as lab:
        with monkeypatch.context() as patched:
            patched.setattr(GpuSharing, "_torch", fails)
            await lab.node.launch(python("pass"), job_id="1", gpus=part(), suspend=job_pb2.SUSPEND_MODE_SWAP)
        refusal = lab.node.changes[-1].refusal
        assert refusal == "it could not be launched here: RuntimeError: can't start new thread"
        assert (await lab.client("2")).sharing == "mps"


async def test_a_job_on_a_whole_gpu_starts_when_the_server_is_gone(world):
    async with world() as lab:
        await lab.client("1")
        daemon = lab.daemon
        await lab.node.stop(0.0, "1")
        status = await lab.other("2", gpus=part(1, 1))
        assert not daemon.daemon.is_alive()
        assert status.sharing == ""
        assert lab.node.log("2") == "None\n"


async def test_the_server_outlives_the_agent_and_is_known_to_the_next(world):
    async with world(leave=True) as lab:
        await lab.client("1")
        daemon = lab.daemon
    async with world() as later:
        assert later.daemon == daemon
        assert (await later.client("2")).sharing == "mps"
        assert later.daemon == daemon
        await later.node.stop(0.0, "1")
        await later.node.stop(0.0, "2")
        await later.no_daemon()
        assert not daemon.daemon.is_alive()


async def test_a_server_that_only_an_orphan_uses_outlives_the_agent(world):
    async with world(leave=True) as lab:
        await lab.client("1")
        daemon = lab.daemon
        lab.sharing.forget(("1", 1))
    async with world() as later:
        assert later.daemon == daemon
        assert daemon.failure() == ""


async def test_a_server_of_which_nobody_knows_who_uses_it_outlives_the_agent(world, monkeypatch):
    async with world(leave=True) as lab:
        await lab.client("1")
        daemon = lab.daemon
        with monkeypatch.context() as silent:
            silent.setattr(MpsDaemon, "clients", Mock(side_effect=ControlFailed("it does not answer")))
            lab.sharing.forget(("1", 1))
            await lab.sharing.close()
    async with world() as later:
        assert later.daemon == daemon
        assert daemon.failure() == ""


async def test_a_server_that_never_says_who_uses_it_does_not_keep_its_gpu(world, monkeypatch):
    async with world() as lab:
        await lab.client("1")
        daemon = lab.daemon
        with monkeypatch.context() as silent:
            silent.setattr(MpsDaemon, "clients", Mock(side_effect=ControlFailed("it does not answer")))
            lab.sharing.forget(("1", 1))
            await lab.no_daemon()
        assert not daemon.daemon.is_alive()


@pytest.mark.slow
async def test_a_server_whose_jobs_ended_while_no_agent_was_there_is_ended_by_the_next(world):
    async with world(leave=True) as lab:
        status = await lab.client("1")
        daemon = lab.daemon
    for process in lab.node.jobs():
        if process.pid == status.pid:
            process.signal(signal.SIGKILL)
    async with world() as later:
        await later.node.end("1")
        await later.no_daemon()
        assert not daemon.daemon.is_alive()


async def test_a_server_that_died_while_no_agent_was_there_is_to_blame_for_the_ends_of_its_clients(world):
    async with world(leave=True) as lab:
        await lab.client("1", "hangs")
        await lab.client("2")
        lab.daemon.servers[0].signal(signal.SIGKILL)
    async with world() as later:
        for job in ("1", "2"):
            assert (await later.node.end(job)).exit.mps_failure.endswith("failed (its server died)")
        await later.no_daemon()


async def test_when_the_server_dies_all_its_clients_end_and_nobody_is_blamed(world):
    async with world() as lab:
        await lab.client("1", "hangs")
        await lab.client("2", "hangs")
        lab.daemon.servers[0].signal(signal.SIGKILL)
        for job in ("1", "2"):
            status = await lab.node.end(job)
            assert status.exit.mps_failure == f"the MPS server of GPU {UUID} failed (its server died)"
        await lab.no_daemon()
        assert lab.reading().healthy


@pytest.fixture
def in_time(monkeypatch):
    """A server is asked how it is when a client has ended, and not by chance between a fault and the end it causes."""
    monkeypatch.setattr(sharing, "_LOOKS_PER_QUESTION", 10**6)
    monkeypatch.setattr(sharing, "_CAUSE_S", 20.0)


async def faulty(lab, does):
    """A client that meets a fatal fault beside one that has not noticed yet; how both end."""
    await lab.client("1", "hangs", attempt=lab.attempt)
    await lab.client("2", does, attempt=lab.attempt)
    lab.go()
    first, neighbour = await lab.node.end("2", lab.attempt), await lab.node.end("1", lab.attempt)
    await lab.no_daemon()
    (lab.place / "go").unlink()
    lab.attempt += 1
    return first, neighbour


@pytest.mark.usefixtures("in_time")
async def test_a_fault_ends_all_clients_and_who_noticed_first_is_not_blamed_for_that(world):
    async with world() as lab:
        first, neighbour = await faulty(lab, "bad")
        assert (first.exit.exit_code, neighbour.exit.signal, neighbour.exit.killed) == (1, signal.SIGKILL, True)
        assert first.exit.mps_failure == neighbour.exit.mps_failure
        assert first.exit.mps_failure == f"the MPS server of GPU {UUID} failed (status FAULT)"


@pytest.mark.slow
@pytest.mark.usefixtures("in_time")
async def test_who_is_first_a_second_time_is_taken_for_the_cause(world):
    async with world() as lab:
        await faulty(lab, "bad")
        again, neighbour = await faulty(lab, "bad")
        assert (again.exit.mps_failure, bool(neighbour.exit.mps_failure)) == ("", True)


@pytest.mark.usefixtures("in_time")
async def test_who_ended_by_a_signal_before_the_fault_was_found_is_taken_for_its_cause(world):
    async with world() as lab:
        cause, neighbour = await faulty(lab, "aborts")
        assert (cause.exit.signal, cause.exit.mps_failure) == (signal.SIGABRT, "")
        assert neighbour.exit.mps_failure.endswith("failed (status FAULT)")


@pytest.mark.usefixtures("in_time")
async def test_the_only_client_is_the_cause_of_its_fault(world):
    async with world() as lab:
        await lab.client("1", "bad")
        lab.go()
        assert (await lab.node.end("1")).exit.mps_failure == ""


async def test_a_job_that_only_fails_does_not_end_its_neighbours(world):
    async with world() as lab:
        one = await lab.client("1")
        await lab.client("2", "crashes")
        lab.go()
        status = await lab.node.end("2")
        assert (status.exit.exit_code, status.exit.mps_failure) == (3, "")
        assert lab.daemon.clients() == (one.pid,)
        assert (lab.daemon.failure(), lab.reading().healthy) == ("", True)


async def test_the_gpu_is_offered_to_nobody_until_the_failed_server_is_gone(world):
    async with world() as lab:
        await lab.client("1", "hangs")
        lab.daemon.servers[0].signal(signal.SIGKILL)
        await lab.node.until(lambda: lab.daemon is None or not lab.reading().healthy)
        assert lab.reading().unhealthy_reason in ("", "MPS server failed; restarting")
        await lab.no_daemon()
        assert lab.reading().healthy
        again = await lab.client("2")
        assert (again.sharing, lab.daemon.failure()) == ("mps", "")


async def test_who_ends_because_it_was_asked_to_has_no_server_to_blame(world):
    async with world() as lab:
        await lab.client("1")
        lab.daemon.servers[0].signal(signal.SIGSTOP)
        status = await lab.node.stop(30.0, "1")
        lab.daemon.servers[0].signal(signal.SIGCONT)
        assert (status.exit.signal, status.exit.mps_failure) == (signal.SIGTERM, "")


@pytest.mark.slow
async def test_a_server_that_does_not_answer_three_times_has_failed(world, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.mps.daemon._QUIT_S", 0.1)
    monkeypatch.setattr("ebbtide_agent.mps.daemon._KILL_S", 0.3)
    async with world() as lab:
        await lab.client("1", "hangs")
        monkeypatch.setattr("ebbtide_agent.mps.control._TIMEOUT_S", 0.3)  # it may take its time to start
        lab.daemon.servers[0].signal(signal.SIGSTOP)
        status = await lab.node.end("1")
        assert "failed (it has not answered 3 times: get_server_status " in status.exit.mps_failure
        await lab.no_daemon()


async def test_a_job_that_swaps_is_no_client_and_keeps_others_from_it(world, place):
    async with world() as lab:
        swap = await lab.other("1", suspend=job_pb2.SUSPEND_MODE_SWAP)
        beside = await lab.other("2")
        assert (swap.sharing, beside.sharing) == ("time-slicing", "time-slicing")
        assert lab.node.log("1") == f"{place}/node/mps/none\n"
        assert lab.daemon is None


async def test_no_server_starts_on_the_whole_gpu_of_a_job_that_swaps_also_after_a_restart_of_the_agent(world, place):
    async with world(leave=True) as lab:
        swap = await lab.other("1", suspend=job_pb2.SUSPEND_MODE_SWAP, gpus=part(1, 1))
        assert (swap.sharing, (await lab.other("2")).sharing) == ("", "time-slicing")
        await lab.node.stop(0.0, "2")
    async with world() as later:
        assert (await later.other("3")).sharing == "time-slicing"
        await later.node.stop(0.0, "1")
        await later.node.stop(0.0, "3")
        assert (await later.client("4")).sharing == "mps"
