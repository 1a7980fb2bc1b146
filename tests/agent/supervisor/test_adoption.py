"""What becomes of attempts when agents, supervisors and directories disappear."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from ebbtide import checkpoints
from ebbtide_agent.attempts import spawner
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.node import EXITED, FREED, REFUSED, RUNNING, order, python

SLEEP = python("print('up', flush=True); import time; time.sleep(600)")
COUNT = python("""
import itertools, time
for n in itertools.count():
    print(n, flush=True)
    time.sleep(0.002)
""")
# A child that has neither the environment nor the descriptors of the job, but its parent.
HIDING = python("""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env={}, start_new_session=True)
print("up", flush=True)
time.sleep(600)
""")
# A daemon that has nothing of the job but the lock, which it does not know of.
DAEMON = ["sh", "-c", f"env -i setsid {sys.executable} -S -c 'import time; time.sleep(600)' & echo up; sleep 600"]


@contextmanager
def other_agent(disk: Path, *orders: agent_pb2.Launch, start: tuple[str, ...] = ()):
    """An agent in a process, and process group, of its own; `start` goes before its command."""
    command = [*start, sys.executable, str(Path(__file__).with_name("agent_process.py")), str(disk)]
    launches = [launch.SerializeToString().hex() for launch in orders]
    with subprocess.Popen([*command, *launches], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def reported(process: subprocess.Popen[str], phase: int) -> agent_pb2.AttemptStatus:
    """The next status with this phase that the agent reports."""
    for line in process.stdout:
        status = agent_pb2.AttemptStatus.FromString(bytes.fromhex(line))
        if status.phase == phase:
            return status
    raise AssertionError("the agent ended")


async def death_of(process: Identity) -> None:
    async with asyncio.timeout(20):
        while process.is_alive():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["process", "process group"])
async def test_killing_the_agent_changes_nothing_for_the_job(agent, disk, kill):
    with other_agent(disk, order(COUNT)) as first:
        before = reported(first, RUNNING)
        kill(first.pid, signal.SIGKILL)
        first.wait()
        async with agent() as node:
            adopted = node.status()
            assert (adopted.phase, adopted.pid, adopted.started_at) == (RUNNING, before.pid, before.started_at)
            size = len(node.log())
            await node.until(lambda: len(node.log()) > size + 100)
            await node.stop()
            lines = node.log().splitlines()
            assert lines == [str(n) for n in range(len(lines))]


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_however_often_the_agent_is_killed_the_job_is_the_same_process_and_its_log_has_no_gap(agent, disk, kills):
    with other_agent(disk, order(COUNT)) as first:
        pid = reported(first, RUNNING).pid
    process = Identity.of(pid)
    for _ in range(kills):
        with other_agent(disk) as another:
            assert reported(another, RUNNING).pid == pid
        another.wait()
        assert process.is_alive()
    async with agent() as node:
        assert node.status().pid == pid
        await node.stop()
        lines = node.log().splitlines()
    assert lines == [str(n) for n in range(len(lines))]


async def test_the_agents_output_ends_with_the_agent_though_its_attempts_go_on(agent, disk):
    with other_agent(disk, order(SLEEP)) as first:
        reported(first, RUNNING)
        first.kill()
        assert first.stdout.read() == ""
    async with agent() as node:
        assert node.status().phase == RUNNING


async def test_a_job_has_every_signal_at_its_default_though_its_agent_ignores_some(disk):
    """As one does that is started with nohup, or in the background of a script."""
    in_background = ("sh", "-c", 'trap "" INT QUIT; exec "$@"', "sh", "nohup")
    tell = ["sh", "-c", "grep ^Sig /proc/self/status; ulimit -n; umask"]
    with other_agent(disk, order(tell), start=in_background) as first:
        reported(first, EXITED)
        ignored = _masks(Path(f"/proc/{first.pid}/status").read_text())["SigIgn"]
    assert all(ignored >> (signum - 1) & 1 for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT))
    shell = subprocess.run(tell, stdout=subprocess.PIPE, text=True, check=True).stdout
    log = AttemptDir.of(disk / "node", "1", 1).output.read_text()
    assert _masks(log) == {"SigBlk": 0, "SigIgn": 0}
    assert log.splitlines()[-2:] == shell.splitlines()[-2:]


def _masks(status: str) -> dict[str, int]:
    """Without the signals that the C library keeps for itself: what is run by make has them ignored."""
    settable = sum(1 << (signum - 1) for signum in signal.valid_signals())
    found = re.findall(r"(SigBlk|SigIgn):\s*(\w+)", status)
    return {name: int(mask, 16) & settable for name, mask in found}


async def test_an_exit_while_nobody_watches_is_reported_later(agent, disk):
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nos._exit(7)"
    async with agent(leave=True) as node:
        await node.launch(python(code), workdir=str(disk))
        await node.running()
    (disk / "go").touch()
    await death_of(node.supervisor())
    async with agent() as node:
        assert (node.status().phase, node.status().exit.exit_code, node.status().lost) == (EXITED, 7, False)


async def test_an_adopted_attempt_can_be_stopped(agent):
    async with agent(leave=True) as node:
        await node.launch(SLEEP)
        await node.running(line="up")
    async with agent() as node:
        assert (await node.stop()).exit.signal == signal.SIGTERM


async def test_proven_free_gpus_and_dirty_ones_are_remembered(agent):
    async with agent() as node:
        await node.run(python("pass"), job_id="1")
        await node.run(python("pass"), job_id="2")
        await node.prove_free("1")
        await node.prove_free("2", dirty={"GPU-1": "stuck"})
        await node.until(lambda: node.changes[-1].dirty_gpus == ["GPU-1"])
        assert node.status("1").phase == FREED
    async with agent() as node:
        assert (node.status("1").phase, node.status("1").dirty_gpus) == (FREED, [])
        assert (node.status("2").phase, node.status("2").dirty_gpus) == (FREED, ["GPU-1"])
        assert node.status("2").dirty_reasons == ["stuck"]
        assert node.phases("1") == [FREED]


async def test_only_gpus_of_an_attempt_that_has_ended_are_to_be_proven_free(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running()
        await node.run(["no-such-command"], job_id="2")
        await node.run(python("pass"), job_id="3")
        await node.until(lambda: node.gpus.asked == [("3", 1)])
        assert node.status().phase == RUNNING


async def test_however_often_its_end_is_told_the_proof_is_awaited_once(agent):
    async with agent() as node:
        await node.run(python("pass"))
        for _ in range(3):
            await node.launch(SLEEP)
        await node.prove_free()
        assert node.gpus.asked == [("1", 1)]


async def test_what_is_not_proven_is_left_to_the_next_agent_and_what_is_forgotten_to_nobody(agent):
    async with agent() as node:
        await node.run(python("pass"), job_id="1")
        await node.run(python("pass"), job_id="2")
        await node.attempts.forget("2", 1)
    async with agent() as node:
        await node.until(lambda: node.gpus.asked == [("1", 1)])
        await node.prove_free("1")
    async with agent() as node:
        assert [(status.job_id, status.phase) for status in node.attempts.statuses()] == [("1", FREED)]
        assert node.gpus.asked == []


async def test_refused_and_forgotten_attempts_stay_so(agent):
    async with agent() as node:
        await node.run(["no-such-command"], job_id="1")
        await node.run(python("pass"), job_id="2")
        await node.attempts.forget("2", 1)
    async with agent() as node:
        assert [(status.job_id, status.phase) for status in node.attempts.statuses()] == [("1", REFUSED)]


@pytest.mark.parametrize("command", [SLEEP, HIDING, DAEMON], ids=["simple", "hiding child", "daemon"])
async def test_a_killed_supervisor_leaves_no_survivor_and_no_success(agent, command):
    async with agent() as node:
        await node.launch(command)
        await node.running(line="up")
        everybody = [Identity.of(pid) for pid in node.attempts.holders.pids()["1", 1]]
        os.kill(node.supervisor().pid, signal.SIGKILL)
        lost = await node.end()
        assert (lost.phase, lost.lost) == (EXITED, True)
        assert lost.exit.exit_code == 125
        assert [process for process in everybody if process.is_alive()] == []
    async with agent() as node:
        assert node.status() == lost


async def test_a_supervisor_killed_while_no_agent_runs_is_found_dead_by_the_next(agent):
    async with agent(leave=True) as node:
        await node.launch(SLEEP)
        job = Identity.of((await node.running(line="up")).pid)
    os.kill(node.supervisor().pid, signal.SIGKILL)
    async with agent() as node:
        assert (node.status().phase, node.status().lost) == (EXITED, True)
        assert not job.is_alive()


async def test_what_a_lost_attempt_saved_by_itself_is_sealed(agent):
    code = "import os, pathlib; pathlib.Path(os.environ['EBB_CHECKPOINT_DIR'], 'state').write_text('x')"
    async with agent() as node:
        await node.launch(python(code + "; print('up', flush=True); import time; time.sleep(600)"))
        await node.running(line="up")
        os.kill(node.supervisor().pid, signal.SIGKILL)
        status = await node.end()
        assert status.checkpoint.bytes == 1
        assert not checkpoints.verify(Path(status.checkpoint.path)).complete


HALF_A_FILE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["EBB_CHECKPOINT_DIR"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for name in sys.argv[1:]:
    (folder / name).write_text("whole")
file = (folder / "state").open("w")
file.write("half")
file.flush()
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("asked", [False, True])
async def test_a_file_that_was_being_written_when_its_supervisor_was_killed_is_no_checkpoint(agent, asked):
    async with agent() as node:
        await node.launch(python(HALF_A_FILE))
        await node.running(line="up")
        if asked:
            await node.attempts.stop("1", 1, 30.0)
        os.kill(node.supervisor().pid, signal.SIGKILL)
        status = await node.end()
        assert (status.lost, status.exit.checkpointed) == (True, job_pb2.CHECKPOINTED_NO)
        assert not status.HasField("checkpoint")
        assert not list(checkpoints._candidates(node.checkpoints / "1"))


async def test_a_save_that_was_cut_short_by_the_end_of_its_supervisor_is_known_as_such(agent):
    async with agent(leave=True) as node:
        await node.launch(python(HALF_A_FILE, "config"))
        await node.running(line="up")
    os.kill(node.supervisor().pid, signal.SIGKILL)
    async with agent() as node:
        status = await node.end()
        assert status.lost
        found = checkpoints.verify(Path(status.checkpoint.path))
        assert (found.complete, found.cut_short) == (False, True)


def rewrite_supervisor(node, identity: Identity, **changes: object) -> None:
    """Make the attempt look as if this process had supervised it and never recorded an end."""
    path = node.place().path
    (path / "exit.json").unlink()
    (path / "supervisor.json").write_text(json.dumps(identity.to_json() | changes))


@pytest.mark.parametrize("difference", ["boot_id", "starttime"])
async def test_a_process_that_has_a_dead_supervisors_pid_is_left_alone(agent, difference):
    """The machine was rebooted, or the pid was used again."""
    with subprocess.Popen(["sleep", "600"]) as innocent:
        other = Identity.of(innocent.pid)
        changes = {"boot_id": "another boot"} if difference == "boot_id" else {"starttime": other.starttime - 1}
        async with agent() as node:
            await node.run(python("pass"))
        rewrite_supervisor(node, other, **changes)
        async with agent() as node:
            assert (node.status().phase, node.status().lost) == (EXITED, True)
        assert innocent.poll() is None
        innocent.kill()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("intent.json", ""),
        ("supervisor.json", "{"),
        *(pytest.param("intent.json", damage, marks=pytest.mark.slow) for damage in ("{", "[]", '{"job_id": "1"}')),
        *(pytest.param("supervisor.json", damage, marks=pytest.mark.slow) for damage in ("", "[]", '{"job_id": "1"}')),
    ],
)
async def test_a_damaged_attempt_does_not_keep_the_others_from_being_adopted(agent, name, damage):
    async with agent() as node:
        await node.run(python("pass"), job_id="1")
        await node.run(python("pass"), job_id="2")
    (node.place().path / name).write_text(damage)
    node.place("3").path.mkdir()
    (node.dir / "attempts" / "stray file").touch()
    async with agent() as node:
        assert [status.job_id for status in node.attempts.statuses()] == ["2"]
        assert (await node.run(python("pass"), job_id="4")).phase == EXITED


async def test_a_damaged_exit_record_is_a_lost_exit(agent):
    async with agent() as node:
        await node.run(python("pass"))
    (node.place().path / "exit.json").write_text('{"phase": "ATT')
    async with agent() as node:
        assert (node.status().phase, node.status().lost) == (EXITED, True)


async def test_an_attempt_that_no_supervisor_claimed_was_never_started(agent):
    async with agent() as node:
        await node.run(python("pass"))
    for name in ("exit.json", "supervisor.json"):
        (node.place().path / name).unlink()
    async with agent() as node:
        before = node.status()
        assert before.phase == REFUSED
    async with agent() as node:
        assert node.status() == before


async def test_a_second_attempt_is_refused_while_the_first_runs(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        status = await node.run(SLEEP, attempt=2)
        assert (status.phase, status.refusal) == (REFUSED, "node still runs attempt 1")
        assert node.status().phase == RUNNING
        assert len(node.jobs()) == 1


async def test_an_overtaken_order_is_refused_for_good(agent):
    async with agent() as node:
        await node.run(python("pass"), attempt=3)
        status = await node.run(python("pass"), attempt=2)
        assert (status.phase, status.refusal) == (REFUSED, "attempt 3 of the job was already started here")


@pytest.mark.parametrize(
    ("lost", "attempt"),
    [
        pytest.param(["attempts"], 1, marks=pytest.mark.slow),
        (["attempts"], 2),
        (["attempts", "locks"], 1),
        pytest.param(["attempts", "locks"], 2, marks=pytest.mark.slow),
    ],
)
async def test_losing_the_agents_state_never_starts_a_second_copy(agent, attempt, lost):
    async with agent(leave=True) as node:
        await node.launch(SLEEP)
        job = Identity.of((await node.running(line="up")).pid)
        supervisor = node.supervisor()
    for name in lost:
        shutil.rmtree(node.dir / name)
    async with agent() as node:
        [found] = node.attempts.statuses()
        assert (found.phase, found.orphan) == (RUNNING, True)
        await node.launch(SLEEP, attempt=attempt)
        status = node.status(attempt=attempt)
        if attempt == 1:
            assert status == found
        else:
            assert (status.phase, status.refusal) == (REFUSED, "node still runs attempt 1")
        assert node.jobs() == [job]
        job.signal(signal.SIGKILL)
        await death_of(supervisor)
        assert (await node.run(python("pass"), attempt=3)).phase == EXITED


async def test_an_exit_is_reported_though_the_attempts_directory_is_gone(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        job = Identity.of((await node.running(line="up")).pid)
        shutil.rmtree(node.place().path)
        job.signal(signal.SIGTERM)
        status = await node.end()
        assert (status.phase, status.exit.signal, status.lost) == (EXITED, signal.SIGTERM, False)


async def test_an_attempt_whose_directory_is_gone_frees_its_gpus_and_is_forgotten(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        shutil.rmtree(node.place().path)
        await node.stop()
        await node.prove_free()
        await node.attempts.forget("1", 1)
        assert node.attempts.statuses() == []


async def test_a_spawner_that_died_is_replaced(agent):
    async with agent() as node:
        await node.launch(SLEEP, job_id="1")
        await node.running(line="up")
        stat = Path(f"/proc/{node.supervisor().pid}/stat").read_text()
        spawner = Identity.of(int(stat.rpartition(")")[2].split()[1]))
        spawner.signal(signal.SIGKILL)
        await death_of(spawner)
        assert (await node.run(python("pass"), job_id="2")).phase == EXITED
        assert node.status("1").phase == RUNNING


async def test_a_spawner_that_died_is_replaced_though_the_first_that_was_to_replace_it_could_not_be_started(
    agent, monkeypatch
):
    async with agent() as node:
        process = node.attempts._spawner._process
        process.kill()
        process.wait()
        with monkeypatch.context() as short:
            short.setattr(spawner.subprocess, "Popen", Mock(side_effect=BlockingIOError("no process is left")))
            refused = await node.run(python("pass"), job_id="1")
        assert (refused.phase, refused.refusal) == (REFUSED, "cannot start a supervisor: no process is left")
        assert (await node.run(python("pass"), job_id="2")).phase == EXITED


async def test_no_two_attempts_of_a_job_ever_overlap_whoever_is_killed(agent, disk):
    """The witness: every attempt tries to take one lock for itself, and says so if it cannot."""
    witness = """
import fcntl, os, sys, time
witness = open("witness", "a")
try:
    fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("overlap", flush=True)
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
    async with agent() as node:
        for attempt in range(1, 4):
            may_end = disk / f"may-end-{attempt}"
            command = python(witness, str(may_end))
            await node.launch(command, attempt=attempt, workdir=str(disk))
            # An impatient master: this one comes while the one before it starts or runs.
            await node.launch(command, attempt=attempt + 1000, workdir=str(disk))
            assert (await node.end(attempt=attempt + 1000)).refusal == f"node still runs attempt {attempt}"
            if attempt == 2:
                await node.running(attempt=attempt, line="up")
                os.kill(node.supervisor(attempt=attempt).pid, signal.SIGKILL)
            may_end.touch()
            assert (await node.end(attempt=attempt)).phase == EXITED
            assert node.log(attempt=attempt) == "up\n"
