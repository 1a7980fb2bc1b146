"""Stopping: whom the signal reaches, how long the grace period is, and what is recorded of it."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time

import pytest
from ebbtide import checkpoints
from ebbtide_agent.attempts import backstop
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import EXITED, LAUNCHING, REFUSED, order, python

# How much later than at the end of its grace period a job may die: its supervisor has to be woken for it.
TOLERANCE_S = 5.0

CHECKPOINTED_YES = job_pb2.CHECKPOINTED_YES
CHECKPOINTED_NO = job_pb2.CHECKPOINTED_NO
CHECKPOINTED_UNKNOWN = job_pb2.CHECKPOINTED_UNKNOWN

SLEEP = python("print('up', flush=True); import time; time.sleep(600)")
STUBBORN = python("""
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("up", flush=True)
while True:
    time.sleep(0.05)
""")
# Ends with the code that is its first argument, after what is its second. Its sleeps are short, because Python handles
# a signal that comes right before a sleep only after that.
YIELDING = """
import os, signal, sys, time
def end(signum, frame):
    print(f"got {signum} {os.getpid()}", flush=True)
    exec(sys.argv[2] if len(sys.argv) > 2 else "")
    os._exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, end)
print(f"up {os.getpid()}", flush=True)
while True:
    time.sleep(0.05)
"""


async def test_a_job_that_handles_the_signal_ends_as_it_likes(agent):
    async with agent() as node:
        await node.launch(python(YIELDING, "85"))
        await node.running(line="up")
        before = time.time()
        status = await node.stop()
        assert (status.exit.exit_code, status.exit.signal) == (85, 0)
        assert (status.exit.stop_requested, status.exit.delivered, status.exit.caught) == (True, True, True)
        assert not status.exit.killed
        assert before <= status.exit.stop_requested_at <= status.exit.ended_at


async def test_a_job_without_a_handler_dies_by_the_signal(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        status = await node.stop()
        assert status.exit.signal == signal.SIGTERM
        assert (status.exit.delivered, status.exit.caught, status.exit.killed) == (True, False, False)
        assert status.exit.checkpointed == CHECKPOINTED_NO


async def test_a_job_that_ignores_sigterm_dies_at_the_end_of_its_grace_period(agent):
    async with agent() as node:
        await node.launch(STUBBORN)
        await node.running(line="up")
        started = time.monotonic()
        status = await node.stop(grace_s=0.5)
        assert time.monotonic() - started >= 0.5
        assert 0.5 <= status.exit.ended_at - status.exit.stop_requested_at < 0.5 + TOLERANCE_S
        assert status.exit.signal == signal.SIGKILL
        assert (status.exit.killed, status.exit.delivered, status.exit.caught) == (True, True, True)
        assert "no" in node.log()


async def test_a_grace_period_of_nothing_kills_at_once_and_without_the_signal(agent):
    async with agent() as node:
        await node.launch(STUBBORN)
        await node.running(line="up")
        status = await node.stop(grace_s=0.0)
        assert status.exit.signal == signal.SIGKILL
        assert (status.exit.killed, status.exit.delivered) == (True, False)
        assert "no" not in node.log()


# Its 150 children do what is its first argument, and then sleep.
CHILDREN = """
import os, signal, socket, sys, time
readable, writable = os.pipe()
for number in range(150):
    if os.fork() == 0:
        exec(sys.argv[1])
        os.write(writable, b"!")
        time.sleep(600)
signal.signal(signal.SIGTERM, lambda *_: os._exit(85))
for number in range(150):
    os.read(readable, 1)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
CONNECT = "os.chdir(os.path.dirname(os.environ['EBB_SOCKET'])); " + (
    "own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); own.connect('stop.sock')"
)


@pytest.mark.parametrize(
    ("first", "target"),
    [("pass", job_pb2.SIGNAL_TARGET_ALL), (CONNECT, job_pb2.SIGNAL_TARGET_AUTO)],
    ids=["it signals", "are connected"],
)
async def test_a_supervisor_may_have_fewer_descriptors_than_there_are_processes_which(agent, first, target):
    async with agent() as node:
        resource.prlimit(node.attempts._spawner._process.pid, resource.RLIMIT_NOFILE, (128, 128))
        await node.launch(python(CHILDREN, first), signal_target=target)
        await node.running(line="up")
        status = await node.stop()
        assert (status.phase, status.lost, status.exit.exit_code) == (EXITED, False, 85)
        assert node.jobs() == []


async def test_an_attempt_that_runs_has_room_on_the_disk_for_the_record_of_its_end(agent):
    async with agent() as node:
        await node.launch(python("import time\ntime.sleep(600)"))
        await node.running()
        room = node.place().path / ".exit.json"
        assert room.stat().st_blocks * 512 >= 16 * 1024
        await node.stop(0.0)
        assert not room.exists()


async def test_a_second_stop_shortens_the_grace_period_and_does_not_signal_again(agent):
    async with agent() as node:
        await node.launch(STUBBORN)
        await node.running(line="up")
        await node.attempts.stop("1", 1, 600.0)
        await node.running(line="no")
        started = time.monotonic()
        status = await node.stop(grace_s=0.3)
        assert 0.3 <= time.monotonic() - started < 10
        assert status.exit.killed
        assert node.log().count("no") == 1


async def test_a_second_stop_cannot_lengthen_the_grace_period(agent):
    async with agent() as node:
        await node.launch(STUBBORN)
        await node.running(line="up")
        await node.attempts.stop("1", 1, 0.3)
        assert (await node.stop(grace_s=600.0)).exit.killed


async def test_the_signal_is_the_one_that_the_job_chose(agent):
    async with agent() as node:
        await node.launch(python(YIELDING.replace("SIGTERM", "SIGUSR1"), "0"), signal="SIGUSR1")
        await node.running(line="up")
        await node.stop()
        assert f"got {signal.SIGUSR1:d}" in node.log()


async def test_a_stopped_process_is_continued_so_that_it_sees_the_signal(agent):
    async with agent() as node:
        await node.launch(python(YIELDING, "85"))
        pid = (await node.running(line="up")).pid
        os.kill(pid, signal.SIGSTOP)
        assert (await node.stop()).exit.exit_code == 85


async def test_a_supervisor_that_hung_past_the_grace_period_says_that_the_job_was_killed_not_that_it_failed(
    agent, monkeypatch
):
    """The agent kills in its place, and it wakes before it has read that a stop was requested."""
    monkeypatch.setattr(backstop, "END_S", 600.0)
    monkeypatch.setattr(backstop, "_AGAIN_S", 600.0)  # it kills once, and not what seals after that
    async with agent() as node:
        await node.launch(SLEEP)
        job, supervisor = Identity.of((await node.running(line="up")).pid), node.supervisor()
        supervisor.signal(signal.SIGSTOP)
        await node.attempts.stop("1", 1, 0.2)
        await node.until(lambda: not job.is_alive())
        supervisor.signal(signal.SIGCONT)
        status = await node.end()
        assert not status.lost
        assert (status.exit.stop_requested, status.exit.killed, status.exit.fenced) == (True, True, False)
        assert status.exit.checkpointed == CHECKPOINTED_NO


@pytest.mark.parametrize("code", [75, 1])
async def test_behind_a_shell_it_is_the_script_that_gets_the_signal_and_says_how_it_ended(agent, code):
    async with agent() as node:
        script = python(YIELDING, str(code))
        await node.launch(["bash", "-c", '"$@"; exit 7', "bash", *script])
        leader = (await node.running(line="up")).pid
        status = await node.stop()
        assert (status.exit.exit_code, status.exit.signal) == (code, 0)
        assert (status.exit.delivered, status.exit.caught) == (True, True)
        assert f"got 15 {leader}" not in node.log()


async def test_whenever_the_script_behind_a_shell_leaves_it_says_how_it_ended(agent):
    """Also in the moment in which it is looked for others a little after the request."""
    jobs = {str(number): 0.015 + 0.0005 * number for number in range(1, 25)}
    async with agent() as node:
        for job, after_s in jobs.items():
            script = python(YIELDING, "1", f"time.sleep({after_s})")
            await node.launch(["bash", "-c", '"$@"; exit 7', "bash", *script], job_id=job)
            await node.running(job, line="up")
            exit = (await node.stop(job_id=job)).exit
            assert (job, exit.exit_code, exit.signal) == (job, 1, 0)


async def test_below_a_process_that_handles_the_signal_others_get_it_once_that_has_left(agent):
    loader = f"import subprocess, sys; subprocess.Popen([{sys.executable!r}, '-S', '-c', {YIELDING!r}, '1'])"
    code = loader + "\n" + YIELDING.replace('f"up', 'f"parent')
    async with agent() as node:
        await node.launch(python(code, "85", "import time; time.sleep(0.2); print('saved', flush=True)"))
        leader = (await node.running(line="up")).pid
        await node.running(line="parent")
        assert (await node.stop()).exit.exit_code == 85
        first, saved, second = node.log().splitlines()[-3:]
        assert (first, saved) == (f"got 15 {leader}", "saved")
        assert second.startswith("got 15 ")


async def test_a_saving_child_has_its_grace_when_the_wrapper_above_it_is_gone(agent, tmp_path):
    """The wrapper ends at once; what matters is still writing."""
    may_save = tmp_path / "may-save"
    save = f"while not os.path.exists({str(may_save)!r}): time.sleep(0.01)\nprint('saved', flush=True)"
    async with agent() as node:
        saving = python(YIELDING, "0", save)
        await node.launch(["bash", "-c", '"$@" & read', "bash", *saving], env={"PATH": os.environ["PATH"]})
        # Its stdin is empty, so the wrapper ends by itself, and with it the attempt.
        status = await node.end()
        assert status.exit.exit_code == 1
        wrapper = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
        await node.launch(python(wrapper, *saving), attempt=2)
        await node.running(attempt=2, line="up")
        leader = node.status(attempt=2).pid
        await node.attempts.stop("1", 2, 30.0)
        await node.until(lambda: "got" in node.log(attempt=2))
        os.kill(leader, signal.SIGKILL)
        may_save.touch()
        status = await node.end(attempt=2)
        assert status.exit.signal == signal.SIGKILL
        assert "saved" in node.log(attempt=2)


async def test_a_stop_that_comes_while_the_attempt_starts_is_honoured_once_it_runs(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        status = await node.stop()
        assert status.phase == EXITED
        assert status.exit.stop_requested
        # A fresh interpreter has no handler yet, or has one already.
        assert status.exit.signal == signal.SIGTERM


async def test_stopping_what_is_over_or_forgotten_does_nothing(agent):
    async with agent() as node:
        ended = await node.run(python("pass"))
        assert await node.stop() == ended
        await node.attempts.forget("1", 1)
        told = list(node.changes)
        await node.attempts.stop("1", 1, 1.0)
        assert node.changes == told


async def test_an_attempt_that_never_began_here_is_refused_when_it_is_asked_to_stop(agent):
    async with agent() as node:
        await node.attempts.stop("99", 1, 1.0)
        [status] = node.changes
        assert (status.job_id, status.attempt, status.phase) == ("99", 1, REFUSED)
        assert status.refusal == "it was asked to stop, and has not begun here"


async def test_one_that_is_asked_to_stop_while_its_paths_are_looked_for_is_known_and_never_starts(agent, monkeypatch):
    async def for_ever(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr("ebbtide_agent.attempts.launching.missing", for_ever)
    async with agent() as node:
        launch = order(SLEEP)
        launch.spec.needs.require_paths.append("/")
        launching = asyncio.create_task(node.attempts.launch(launch))
        await node.until(lambda: [status.phase for status in node.attempts.statuses()] == [LAUNCHING])
        await node.attempts.stop("1", 1, 30.0)
        await launching
        assert (node.attempts.statuses(), node.place().path.exists()) == ([], False)
        [status] = node.changes
        assert status.refusal == "it was asked to stop before all that it needs was here"


async def test_stops_that_race_with_exits_always_end_in_one_recorded_exit(agent):
    async with agent() as node:
        jobs = [str(n) for n in range(20)]
        for job_id in jobs:
            await node.launch(["sh", "-c", "exit 3"], job_id=job_id)
        for job_id in jobs:
            await node.attempts.stop(job_id, 1, 10.0)
        for job_id in jobs:
            status = await node.end(job_id)
            assert status.phase == EXITED
            assert not status.lost
            ended_by_itself = (status.exit.exit_code, status.exit.signal) == (3, 0)
            ended_by_signal = (status.exit.signal, status.exit.delivered) == (signal.SIGTERM, True)
            assert ended_by_itself or ended_by_signal


async def test_an_exit_before_the_stop_is_not_taken_for_its_answer(agent):
    """The leader is gone but its orphan still runs when the stop arrives."""
    async with agent() as node:
        await node.launch(["sh", "-c", "exit 0"])
        status = await node.end()
        assert not status.exit.stop_requested
        assert not status.exit.delivered


async def test_a_job_on_the_sdk_suspends_and_all_of_it_is_recorded(agent):
    code = """
import ebbtide, time
job = ebbtide.job()
for step in range(1, 100000):
    job.report(step=step, total=100000, loss=1 / step)
    if job.should_suspend():
        job.suspend(step=step, save=lambda directory: (directory / "state").write_text(str(step)))
    time.sleep(0.01)
"""
    async with agent() as node:
        await node.launch([sys.executable, "-c", code])
        await node.until(lambda: node.status().progress.step > 3)
        status = await node.stop()
        assert status.exit.exit_code == 85
        assert (status.exit.asked, status.exit.acknowledged, status.exit.caught) == (True, True, True)
        assert status.exit.checkpointed == CHECKPOINTED_YES
        assert 0 < status.exit.checkpoint_s < 10
        assert status.checkpoint.verified
        assert status.checkpoint.step >= status.progress.step > 3
        saved = checkpoints.verify(node.checkpoints / "1" / "attempt-1" / f"step-{status.checkpoint.step:012d}")
        assert str(saved.path.resolve()) == status.checkpoint.path
        assert saved.bytes == status.checkpoint.bytes


async def test_a_script_that_saves_by_itself_has_its_directory_sealed(agent):
    save = "import pathlib; pathlib.Path(os.environ['EBB_CHECKPOINT_DIR'], 'state').write_text('x' * 100)"
    async with agent() as node:
        await node.launch(python(YIELDING, "0", save))
        await node.running(line="up")
        status = await node.stop()
        assert status.exit.checkpointed == CHECKPOINTED_YES
        assert (status.checkpoint.bytes, status.checkpoint.verified) == (100, True)
        assert checkpoints.verify(node.checkpoints / "1" / "attempt-1").complete


async def test_a_script_that_is_killed_while_it_saves_is_sealed_as_perhaps_incomplete(agent):
    save = (
        "open(os.environ['EBB_CHECKPOINT_DIR'] + '/state', 'w').write('x')\nprint('saves', flush=True)\ntime.sleep(600)"
    )
    async with agent() as node:
        await node.launch(python(YIELDING, "0", save))
        await node.running(line="up")
        await node.attempts.stop("1", 1, 30.0)
        await node.running(line="saves")
        status = await node.stop(grace_s=0.0)
        assert status.exit.killed
        assert status.exit.checkpointed == CHECKPOINTED_UNKNOWN
        await node.run(["true"], attempt=2)  # it seals that, if there was no time for it before
        assert not checkpoints.verify(node.checkpoints / "1" / "attempt-1").complete


async def test_what_was_saved_before_the_stop_is_no_answer_to_it(agent):
    code = "import os, pathlib; pathlib.Path(os.environ['EBB_CHECKPOINT_DIR'], 'state').write_text('x')\n"
    async with agent() as node:
        await node.launch(python(code + "print('up', flush=True); import time; time.sleep(600)"))
        await node.running(line="up")
        status = await node.stop()
        assert status.exit.checkpointed == CHECKPOINTED_NO
        assert status.checkpoint.bytes == 1


@pytest.mark.parametrize("more", ["", "import ebbtide; ebbtide.job().report(step=1)\n"], ids=["alone", "reports"])
async def test_nobody_knows_what_a_script_with_a_checkpoint_path_of_its_own_saved(agent, more):
    """Also if it tells its progress: to report steps is not to save through the SDK."""
    async with agent() as node:
        await node.launch([sys.executable, "-c", more + YIELDING, "0"])
        await node.running(line="up")
        assert (await node.stop()).exit.checkpointed == CHECKPOINTED_UNKNOWN


async def test_a_script_that_fails_when_it_is_asked_and_leaves_nothing_new_has_not_saved(agent):
    """An exit code 1 says so, whichever shell stands above."""
    shell = ["bash", "-c", '"$@"; echo more', "bash"]
    async with agent() as node:
        for attempt, command in enumerate((python(YIELDING, "1"), [*shell, *python(YIELDING, "1")]), 1):
            await node.launch(command, attempt=attempt)
            await node.running(attempt=attempt, line="up")
            exit = (await node.stop(attempt=attempt)).exit
            assert (exit.exit_code, exit.checkpointed) == (1, CHECKPOINTED_NO)


@pytest.mark.parametrize(
    ("published_at", "checkpointed"),
    [(None, CHECKPOINTED_YES), (7, CHECKPOINTED_YES), (3, CHECKPOINTED_NO)],
    ids=["saves by itself", "has just published", "published before"],
)
async def test_a_job_that_says_that_it_has_saved_is_believed_unless_what_it_published_is_older(
    agent, published_at, checkpointed
):
    code = f"""
import ebbtide, time
job = ebbtide.job()
if {published_at} is not None:
    job.checkpoint(lambda folder: (folder / "state").write_text("x"), step={published_at})
job.should_suspend()
job.report(step=7, total=7)
print("up", flush=True)
while not job.should_suspend():
    time.sleep(0.01)
job.suspend()
"""
    async with agent() as node:
        await node.launch([sys.executable, "-c", code])
        await node.running(line="up")
        exit = (await node.stop()).exit
        assert (exit.acknowledged, exit.checkpointed) == (True, checkpointed)


@pytest.mark.parametrize(
    "order", [b"not json\n", b"[]\n", b'{"do": "stop", "grace_s": "soon"}\n', b'{"do": "dance"}\n']
)
async def test_nonsense_on_the_control_socket_is_ignored(agent, order):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(node.place().control_socket))
            connection.sendall(order + b"\n")
            first = connection.makefile().readline()
        assert json.loads(first)["pid"] == node.status().pid
        assert (await node.stop()).exit.signal == signal.SIGTERM
