"""Nothing that a user does with files or signals keeps an attempt from ending within its grace period and a little."""

import json
import os
import signal
import socket as sockets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ebbtide import trees
from ebbtide_agent.attempts import backstop
from ebbtide_agent.attempts.supervised import Supervised
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_agent.supervisor.sealing import settling
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import EXITED, REFUSED, RUNNING, Node, python
from tests.agent.supervisor.test_lease import launch
from tests.attacks.hung import hung

UP = python("print('up', flush=True); import time; time.sleep(600)")
# Saves when it is asked to, and leaves.
SAVES = python("""
import os, signal, time
def end(signum, frame):
    open(os.environ["EBB_CHECKPOINT_DIR"] + "/saved", "w").write("whole")
    os._exit(85)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    time.sleep(0.05)
""")
DEAF = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
# What every stop may take beyond its grace period, and what a busy machine may take beside.
BEYOND_S = 5.0
BUSY_S = 10.0


def pipe(directory: Path) -> None:
    os.mkfifo(directory / "MANIFEST.json")


def pipe_in_a_step(directory: Path) -> None:
    (directory / "step-000000000001").mkdir()
    os.mkfifo(directory / "step-000000000001" / "MANIFEST.json")


def sparse(directory: Path) -> None:
    (directory / "MANIFEST.json").touch()
    os.truncate(directory / "MANIFEST.json", 2 << 30)


def socket(directory: Path) -> None:
    os.mknod(directory / "MANIFEST.json", 0o600 | stat.S_IFSOCK)


def deep(directory: Path) -> None:
    below = os.open(directory, os.O_RDONLY)
    for _ in range(1_100):
        os.mkdir("d", dir_fd=below)
        above, below = below, os.open("d", os.O_RDONLY, dir_fd=below)
        os.close(above)
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=below))
    os.close(below)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent does by itself what it does, only earlier."""
    monkeypatch.setattr(backstop, "KILL_S", 0.3)
    monkeypatch.setattr(backstop, "END_S", 0.6)


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent leaves the end to the supervisor, however late a busy machine makes that."""
    monkeypatch.setattr(backstop, "KILL_S", 30.0)
    monkeypatch.setattr(backstop, "END_S", 60.0)


def directory_of(node: Node, attempt: int = 1) -> Path:
    return node.checkpoints / "1" / f"attempt-{attempt}"


def is_helper(pid: int) -> bool:
    found = procfs.read_stat(pid)
    return found is not None and found.command == HELPER


async def stopped_in_time(node: Node, grace_s: float, beyond_s: float = BEYOND_S, attempt: int = 1) -> float:
    began = time.monotonic()
    await node.stop(grace_s, attempt=attempt)
    took = time.monotonic() - began
    assert took < grace_s + beyond_s + BUSY_S
    return took


@pytest.mark.usefixtures("by_itself")
@pytest.mark.parametrize(
    ("hostile", "command"),
    [
        (pipe, UP),
        *((hostile, SAVES) for hostile in (pipe_in_a_step, sparse, deep)),
        *(
            pytest.param(hostile, command, marks=pytest.mark.slow)
            for hostile, command in (
                (pipe, SAVES),
                (socket, SAVES),
                *((other, UP) for other in (pipe_in_a_step, sparse, socket, deep)),
            )
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "killed" if value is UP else "saves",
)
async def test_whatever_lies_in_its_checkpoint_directory(
    agent: Callable[..., object], hostile: Callable[[Path], None], command: list[str]
) -> None:
    async with agent() as node:
        await node.launch(command)
        await node.running(line="up")
        hostile(directory_of(node))
        await stopped_in_time(node, 30.0 if command is SAVES else 0.5)
        assert node.status().phase == EXITED
        assert not node.status().lost
        # The next one finds it there.
        await node.launch(UP, attempt=2)
        await node.running(attempt=2, line="up")


@pytest.mark.parametrize("hostile", [pipe, *(pytest.param(other, marks=pytest.mark.slow) for other in (sparse, deep))])
async def test_a_supervisor_that_is_killed_leaves_such_a_directory_to_the_agent(
    agent: Callable[..., object], hostile: Callable[[Path], None]
) -> None:
    async with agent() as node:
        await node.launch(UP)
        await node.running(line="up")
        hostile(directory_of(node))
        node.supervisor().signal(signal.SIGKILL)
        status = await node.end()
        assert (status.phase, status.lost) == (EXITED, True)


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_stop_knows_what_was_saved_though_its_user_has_done_that_to_the_helper(
    agent: Callable[..., object], signum: signal.Signals
) -> None:
    async with agent() as node:
        await node.launch(SAVES)
        await node.running(line="up")
        [helper] = [pid for pid in procfs.children(node.supervisor().pid) if is_helper(pid)]
        os.kill(helper, signum)
        await stopped_in_time(node, 30.0)
        assert node.status().exit.checkpointed == job_pb2.CHECKPOINTED_YES


@pytest.mark.usefixtures("by_itself")
@pytest.mark.fuse
@pytest.mark.parametrize("command", [UP, DEAF], ids=["killed", "deaf"])
async def test_a_checkpoint_file_system_that_hangs_holds_up_no_stop(
    agent: Callable[..., object], command: list[str]
) -> None:
    async with agent() as node:
        await node.launch(command)
        await node.running(line="up")
        with hung(directory_of(node), deeply=True):
            await stopped_in_time(node, 0.5)
            assert not node.jobs()
            await node.until(lambda: not node.processes())
        assert not node.status().lost


@pytest.mark.fuse
@pytest.mark.usefixtures("soon")
async def test_as_long_as_a_process_of_it_sleeps_where_no_signal_reaches_it_it_is_not_over(
    agent: Callable[..., object],
) -> None:
    async with agent() as node:
        await node.launch(SAVES)
        await node.running(line="up")
        job = Identity.of(node.status().pid)
        with hung(directory_of(node), deeply=True) as taken:
            await node.attempts.stop("1", 1, 60.0)
            await node.until(lambda: job.pid in taken)
            await node.attempts.stop("1", 1, 0.5)
            late = time.monotonic() + 0.5 + 3 * backstop.END_S
            await node.until(lambda: time.monotonic() >= late)
            assert (job.is_alive(), node.status().phase) == (True, RUNNING)
            node.supervisor().signal(signal.SIGKILL)
            late = time.monotonic() + 0.3
            await node.until(lambda: time.monotonic() >= late)
            assert (job.is_alive(), node.status().phase) == (True, RUNNING)
        await node.end()
        assert not job.is_alive()


@pytest.mark.fuse
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_what_was_saved_before_it_hung_is_sealed_before_the_next_attempt_begins(
    agent: Callable[..., object], elsewhere: bool
) -> None:
    writes = python("""
import os, time
open(os.environ["EBB_CHECKPOINT_DIR"] + "/saved", "w").write("whole")
print("up", flush=True)
time.sleep(600)
""")
    async with agent() as node:
        await node.launch(writes)
        await node.running(line="up")
        with hung(directory_of(node), deeply=True):
            await stopped_in_time(node, 0.5)
        assert not (directory_of(node) / "MANIFEST.json").exists()
        if elsewhere:  # a node that knows nothing of the first attempt
            trees.remove(node.dir / "unsealed")
            (node.dir / "unsealed").mkdir()
        await node.launch(UP, attempt=2)
        await node.running(attempt=2, line="up")
        assert (directory_of(node) / "MANIFEST.json").exists()
        environment = Path(f"/proc/{node.status(attempt=2).pid}/environ").read_bytes()
        assert f"EBB_RESUME_DIR={directory_of(node)}".encode() in environment
        assert list((node.dir / "unsealed").iterdir()) == []


@pytest.mark.fuse
async def test_an_attempt_that_is_to_leave_its_gpu_when_it_has_ended_already_keeps_its_end(
    agent: Callable[..., object], disk: Path
) -> None:
    waits = (
        f"import os, time\nprint('up', flush=True)\nwhile not os.path.exists({str(disk / 'go')!r}): time.sleep(0.01)"
    )
    async with agent() as node:
        await node.launch(python(waits))
        await node.running(line="up")
        with hung(directory_of(node), deeply=True) as taken:
            (disk / "go").touch()
            await node.until(lambda: bool(taken))  # who asks is to seal it
            await node.attempts.swap("1", 1, 0.5, 0)
            status = await node.end()
        assert (status.lost, status.exit.exit_code, status.exit.killed) == (False, 0, False)


@pytest.mark.usefixtures("by_itself")
@pytest.mark.fuse
async def test_an_attempt_whose_directory_hangs_before_it_begins_is_stopped(agent: Callable[..., object]) -> None:
    async with agent() as node:
        node.checkpoints.mkdir(parents=True)
        (node.checkpoints / "1").mkdir()
        with hung(node.checkpoints / "1", deeply=True):
            await node.launch(UP)
            await stopped_in_time(node, 0.5)
            assert node.status().phase == REFUSED
            assert "do not answer" in node.status().refusal


@pytest.mark.usefixtures("by_itself")
@pytest.mark.fuse
async def test_an_attempt_whose_program_is_where_nobody_answers_is_stopped(
    agent: Callable[..., object], disk: Path
) -> None:
    (disk / "bin").mkdir()
    async with agent() as node:
        with hung(disk / "bin"):
            await node.launch(["program"], env={"PATH": str(disk / "bin")})
            await stopped_in_time(node, 0.5)
            assert node.status().phase == REFUSED
            assert "cannot be executed in time" in node.status().refusal
            assert not node.jobs()


@pytest.mark.fuse
async def test_a_process_inside_whose_program_is_where_nobody_answers_holds_up_nothing(
    agent: Callable[..., object], disk: Path
) -> None:
    (disk / "bin").mkdir()
    async with agent() as node:
        await node.launch(SAVES)
        await node.running(line="up")
        with hung(disk / "bin"), socket_to(node) as door, open(os.devnull, "r+") as null:
            request = {"command": ["program"], "env": {"PATH": str(disk / "bin")}, "terminal": False}
            sockets.send_fds(door, [json.dumps(request).encode()], [null.fileno()] * 3)
            await stopped_in_time(node, 30.0)
            assert (node.status().exit.exit_code, node.status().lost) == (85, False)
            await node.until(lambda: not node.processes())


def socket_to(node: Node) -> sockets.socket:
    """Whoever makes guests comes here."""
    door = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    door.connect(str(node.place().process_socket))
    return door


@pytest.mark.usefixtures("by_itself")
@pytest.mark.fuse
async def test_an_output_file_where_nobody_answers_holds_up_nothing(agent: Callable[..., object], disk: Path) -> None:
    (disk / "out").mkdir()
    async with agent() as node:
        with hung(disk / "out", deeply=True):
            await node.launch(UP, output=str(disk / "out" / "file"))
            await stopped_in_time(node, 0.5)
            assert node.status().phase == REFUSED
            await node.until(lambda: not node.processes())


@pytest.mark.fuse
async def test_the_agent_itself_waits_for_no_such_directory(agent: Callable[..., object], soon: None) -> None:
    async with agent() as node:
        await node.launch(UP)
        await node.running(line="up")
        with hung(directory_of(node), deeply=True):
            await node.attempts.stop("1", 1, 0.2)
            node.supervisor().signal(signal.SIGKILL)
            status = await node.end()
        assert status.lost


@pytest.mark.fuse
@pytest.mark.usefixtures("soon")
async def test_a_lease_ends_though_its_supervisor_and_its_directory_hang(agent: Callable[..., object]) -> None:
    async with agent() as node:
        await launch(node, DEAF, failover_after_s=6.0, grace_s=0.5)
        with hung(directory_of(node), deeply=True):
            node.supervisor().signal(signal.SIGSTOP)
            await node.end()
            assert not node.jobs()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("command", [UP, DEAF, SAVES], ids=["killed", "deaf", "saves"])
async def test_a_supervisor_that_was_stopped_before_the_request(
    agent: Callable[..., object], command: list[str]
) -> None:
    async with agent() as node:
        await node.launch(command)
        await node.running(line="up")
        node.supervisor().signal(signal.SIGSTOP)
        await stopped_in_time(node, 0.2)
        assert (node.status().phase, node.status().lost) == (EXITED, True)
        assert not node.processes()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("steps", [1, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (0, 2, 3))])
async def test_a_supervisor_that_is_stopped_at_any_moment_of_the_end(agent: Callable[..., object], steps: int) -> None:
    async with agent() as node:
        await node.launch(SAVES)
        await node.running(line="up")
        supervisor = node.supervisor()
        await node.attempts.stop("1", 1, 1.0)
        until = time.monotonic() + steps * 0.008
        await node.until(lambda: time.monotonic() >= until)
        supervisor.signal(signal.SIGSTOP)
        await node.end()
        await node.until(lambda: not supervisor.is_alive())
        assert not node.processes()


@pytest.mark.usefixtures("soon")
async def test_a_supervisor_that_hangs_after_it_has_said_the_end_is_ended_so_that_the_job_may_begin_again(
    agent: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Supervised.apply

    def stop_it_then(attempt: Supervised, content: dict[str, Any]) -> None:
        if content["phase"] == "ATTEMPT_PHASE_EXITED":
            supervisor.signal(signal.SIGSTOP)  # unless it was faster
        apply(attempt, content)

    monkeypatch.setattr(Supervised, "apply", stop_it_then)
    async with agent() as node:
        await node.launch(SAVES)
        await node.running(line="up")
        supervisor = node.supervisor()
        await node.stop()
        await node.until(lambda: not supervisor.is_alive())


@pytest.mark.usefixtures("soon")
async def test_a_second_stop_is_enforced_though_the_first_allowed_much_more(agent: Callable[..., object]) -> None:
    async with agent() as node:
        await node.launch(DEAF)
        await node.running(line="up")
        await node.attempts.stop("1", 1, 600.0)
        node.supervisor().signal(signal.SIGSTOP)
        await stopped_in_time(node, 0.2)
        assert not node.processes()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("moment", [1, *(pytest.param(moment, marks=pytest.mark.slow) for moment in (0, 2, 3))])
async def test_a_supervisor_that_is_stopped_before_the_attempt_runs(agent: Callable[..., object], moment: int) -> None:
    async with agent() as node:
        launching = node.launch(UP)
        await launching
        spawner = node.attempts._spawner._process
        assert spawner is not None
        until = time.monotonic() + moment * 0.01
        while time.monotonic() < until:
            pass
        for pid in procfs.children(spawner.pid):
            os.kill(pid, signal.SIGSTOP)
        await stopped_in_time(node, 0.2)
        assert node.status().phase in (EXITED, REFUSED)
        assert not node.jobs()
        for pid in procfs.children(spawner.pid):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGCONT)
        await node.until(lambda: not node.processes())


@pytest.mark.slow
async def test_without_its_supervisor_a_stop_is_over_in_time_by_the_agents_own_clock(
    agent: Callable[..., object],
) -> None:
    async with agent() as node:
        await node.launch(DEAF)
        await node.running(line="up")
        node.supervisor().signal(signal.SIGSTOP)
        assert await stopped_in_time(node, 1.0, beyond_s=BEYOND_S) >= 1.0 + backstop.END_S


def test_remains_that_somebody_damaged_are_not_sealed(tmp_path: Path) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        settling.LeftFiles.from_json({"attempt": "x"})
