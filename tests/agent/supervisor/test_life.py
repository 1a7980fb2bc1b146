"""One attempt from its launch to its end, with nobody interfering."""

import asyncio
import errno
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from ebbtide_agent.attempts import launching
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_agent.supervisor.launching import launch
from ebbtide_agent.supervisor.status import WireRefusalCause
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.node import EXITED, LAUNCHING, REFUSED, RUNNING, Node, order, python

DOUBLE_FORK = """
import os, time
readable, writable = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(f"escaped {os.getpid()}", flush=True)
        os.write(writable, b"!")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(readable, 1)
"""

UNPASSABLE = "command or environment cannot be passed on: "


async def test_an_attempt_is_launched_runs_and_exits(agent):
    async with agent() as node:
        status = await node.run(python("print('hello')"))
        assert node.phases() == [LAUNCHING, RUNNING, EXITED]
        assert (status.exit.exit_code, status.exit.signal, status.lost) == (0, 0, False)
        assert status.pid > 0
        assert 0 < status.started_at <= status.exit.ended_at
        assert not status.exit.stop_requested
        assert node.log() == "hello\n"


async def test_the_exit_code_is_the_leaders(agent):
    async with agent() as node:
        status = await node.run(python("raise SystemExit(7)"))
        assert (status.exit.exit_code, status.exit.signal) == (7, 0)


async def test_a_death_by_signal_is_recorded_with_the_signal(agent):
    async with agent() as node:
        status = await node.run(python("import os; os.abort()"))
        assert status.exit.signal == 6


async def test_stdout_and_stderr_share_the_log_in_their_order(agent):
    async with agent() as node:
        await node.run(["sh", "-c", "echo one; echo two >&2; echo three"])
        assert node.log() == "one\ntwo\nthree\n"


async def test_the_same_order_twice_starts_one_process(agent):
    async with agent() as node:
        launch = order(python("print('started', flush=True); import time; time.sleep(600)"))
        await node.attempts.launch(launch)
        await node.attempts.launch(launch)
        first = await node.running(line="started")
        await node.attempts.launch(launch)
        assert node.changes[-1] == first
        assert node.log() == "started\n"
        assert [process.pid for process in node.jobs()] == [first.pid]


async def test_while_the_paths_that_it_requires_are_looked_for_an_attempt_counts_as_here(agent, monkeypatch):
    """A master that does not find it among the node's attempts would take it for over, and it would start after all."""
    looking, found = asyncio.Event(), asyncio.Event()

    async def look(*_):
        looking.set()
        await found.wait()
        return ""

    monkeypatch.setattr(launching, "missing", look)
    async with agent() as node:
        needs = job_pb2.Needs(require_paths=["/data"])
        ordered = asyncio.create_task(node.launch(python("pass"), needs=needs))
        await looking.wait()
        assert [(status.job_id, status.attempt, status.phase) for status in node.attempts.statuses()] == [
            ("1", 1, LAUNCHING)
        ]
        found.set()
        await ordered
        assert len(node.attempts.statuses()) == 1
        assert (await node.end()).phase == EXITED


async def test_a_finished_attempt_is_not_started_again(agent):
    async with agent() as node:
        ended = await node.run(python("print('once')"))
        assert await node.run(python("print('once')")) == ended
        assert node.log() == "once\n"


async def test_a_process_has_nothing_of_the_agent_but_its_lock(agent, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    code = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "environment": sorted(os.environ),
    "descriptors": {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{n}")},
    "group": os.getpgid(0), "pid": os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(),
    "no_new_privileges": status["NoNewPrivs"],
    "ignored": int(status["SigIgn"], 16), "blocked": int(status["SigBlk"], 16),
}))
"""
    async with agent() as node:
        await node.run([sys.executable, "-S", "-c", code], workdir="/usr")
        seen = json.loads(node.log())
        assert "SECRET_OF_THE_AGENT" not in seen["environment"]
        log, lock = str(node.place().output), str(node.dir / "locks" / "1.lock")
        descriptors = {n: path for n, path in seen["descriptors"].items() if not path.startswith("/proc/")}
        assert sorted(descriptors.values()) == sorted([os.devnull, log, log, lock])
        assert seen["group"] == seen["pid"]
        assert seen["session"] == node.supervisor().pid
        assert seen["cwd"] == "/usr"
        assert seen["no_new_privileges"] == "1"
        # Python itself ignores SIGPIPE and SIGXFSZ when it starts; those from 32 on are the C library's and inherited.
        assert seen["ignored"] & (1 << 31) - 1 & ~(1 << 12 | 1 << 24) == 0
        assert seen["blocked"] == 0


async def test_what_an_attempt_leaves_on_disk_is_the_users_alone(agent):
    async with agent() as node:
        await node.run(python("pass"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in node.place().path.iterdir()}
        assert stat.S_IMODE(node.place().path.stat().st_mode) == 0o700
        assert {modes[name] for name in ("intent.json", "supervisor.json", "exit.json", "output.log")} == {0o600}


async def test_a_process_that_escaped_by_a_double_fork_dies_with_the_attempt(agent):
    async with agent() as node:
        status = await node.run(python(DOUBLE_FORK))
        escapee = int(node.log().split()[1])
        assert status.exit.exit_code == 0
        assert not Path(f"/proc/{escapee}").exists()


def _without_helper(pids):
    return [pid for pid in pids if (stat := procfs.read_stat(pid)) and stat.command != HELPER]


async def test_the_processes_of_an_attempt_are_known_whatever_their_parents(agent):
    async with agent() as node:
        await node.launch(python(DOUBLE_FORK + "\ntime.sleep(600)"))
        await node.running(line="escaped")
        escapee = int(node.log().split()[1])
        await node.until(
            lambda: set(_without_helper(node.attempts.holders.pids()["1", 1])) == {node.status().pid, escapee}
        )


async def test_progress_is_passed_on_at_once_and_then_three_times_a_second(agent, tmp_path):
    code = """
import json, os, socket, sys, time
job = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
os.chdir(os.path.dirname(os.environ["EBB_SOCKET"]))
step = 0
while step < 100 or not os.path.exists(sys.argv[1]):
    step += 1
    job.sendto(json.dumps({"kind": "progress", "rank": 0, "step": step, "total": 10**6}).encode(), "job.sock")
    time.sleep(0.01)
"""
    async with agent() as node:

        def steps() -> list[int]:
            return [change.progress.step for change in node.changes if change.HasField("progress")]

        await node.launch(python(code, str(tmp_path / "may-end")))
        await node.until(lambda: len(steps()) > 2)
        (tmp_path / "may-end").touch()
        status = await node.end()
        ran_s = status.exit.ended_at - status.started_at
        assert steps()[-1] == status.progress.step >= 100
        assert steps() == sorted(steps())
        # Besides those in between: the first one, and the last one with the end.
        assert len(steps()) <= ran_s / 0.3 + 2


async def test_an_attempt_that_ended_has_no_processes(agent):
    async with agent() as node:
        await node.run(python("pass"))
        await node.until(lambda: node.attempts.holders.pids() == {})


async def test_all_attempts_of_a_burst_run_and_end(agent):
    async with agent() as node:
        jobs = [str(n) for n in range(30)]
        for job_id in jobs:
            await node.launch(["sh", "-c", f"echo {job_id}; exit {job_id}"], job_id=job_id)
        for job_id in jobs:
            assert (await node.end(job_id)).exit.exit_code == int(job_id)
            assert node.log(job_id) == f"{job_id}\n"


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        (["true"], {"workdir": "/nowhere/at/all"}, "working directory /nowhere/at/all does not exist"),
        (["no-such-command"], {}, "command 'no-such-command': not found"),
        (["./no-such-script.sh"], {}, "command './no-such-script.sh': not found"),
        (["true"], {"env": {"PATH": "/nowhere"}}, "command 'true': not found"),
        (["/proc/version"], {}, "command '/proc/version': not executable"),
        ([], {}, "the command is empty"),
        (["true", "a\0b"], {}, "command or environment cannot be passed on: embedded null byte"),
        (
            ["true"],
            {"env": {"A=B": "c"}},
            "command or environment cannot be passed on: illegal environment variable name",
        ),
        (["true", "x" * 200_000], {}, "command 'true': arguments and environment are too large"),
        (["true"], {"signal": "SIGNOTHING"}, "there is no signal 'SIGNOTHING'"),
    ],
)
async def test_a_job_that_can_start_nowhere_is_refused_with_the_reason(agent, command, options, reason):
    async with agent() as node:
        status = await node.run(command, **options)
        assert status.phase == REFUSED
        assert status.refusal == reason
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_BAD_JOB
        assert not status.HasField("exit")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (errno.ESTALE, WireRefusalCause.NODE),
        (errno.EIO, WireRefusalCause.NODE),
        (errno.EACCES, WireRefusalCause.BAD_JOB),
        (errno.ENAMETOOLONG, WireRefusalCause.BAD_JOB),
    ],
)
def test_a_working_directory_that_cannot_be_looked_at_is_a_fault_of_the_job_unless_that_may_pass(
    monkeypatch, code, cause
):
    unknown = OSError(code, os.strerror(code))
    with monkeypatch.context() as for_a_moment:
        for_a_moment.setattr(os, "stat", Mock(side_effect=unknown))
        for_a_moment.setattr(Path, "is_dir", os.path.isdir)  # as Python is from 3.14 on
        refusal = launch._refusal(["true"], "/shared/work", unknown)
    assert refusal == [f"working directory /shared/work: {os.strerror(code)}", cause]


async def test_a_refused_attempt_holds_no_lock(agent):
    async with agent() as node:
        await node.run(["no-such-command"])
        assert (await node.run(python("pass"), attempt=2)).phase == EXITED


async def test_a_node_that_cannot_write_checkpoints_refuses_but_blames_itself(agent):
    async with agent() as node:
        node.checkpoints.parent.mkdir(exist_ok=True)
        node.checkpoints.write_text("a file in the way")
        status = await node.run(python("pass"))
        assert status.phase == REFUSED
        assert "cannot use the checkpoint directory" in status.refusal
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_UNSPECIFIED


async def test_an_order_with_a_path_for_a_job_id_is_refused(agent):
    async with agent() as node:
        await node.attempts.launch(order(["true"], job_id="../../evil"))
        await node.until(lambda: bool(node.changes))
        assert node.changes[-1].phase == REFUSED
        assert node.attempts.statuses() == []
        assert list(node.dir.glob("attempts/*")) == []


async def test_elements_of_an_array_are_attempts_like_any_other(agent):
    async with agent() as node:
        await node.run(["sh", "-c", "echo $EBB_JOB_ID $EBB_ARRAY_INDEX $EBB_ATTEMPT"], job_id="17.3", attempt=2)
        assert node.log("17.3", 2) == "17.3 3 2\n"


async def test_a_forgotten_attempt_leaves_its_log_only(agent):
    async with agent() as node:
        await node.run(python("print('kept')"))
        await node.attempts.forget("1", 1)
        assert node.attempts.statuses() == []
        assert sorted(os.listdir(node.place().path)) == ["forgotten", "output.log"]
        assert node.log() == "kept\n"
        await node.attempts.forget("1", 1)


async def test_a_running_attempt_is_not_forgotten(agent):
    async with agent() as node:
        await node.launch(python("import time; time.sleep(600)"))
        await node.running()
        await node.attempts.forget("1", 1)
        assert node.status().phase == RUNNING


async def test_a_forgotten_attempt_is_not_started_again(agent):
    async with agent() as node:
        await node.run(python("print('once')"))
        await node.attempts.forget("1", 1)
        node.changes.clear()
        await node.launch(python("print('once')"))
        await node.until(lambda: bool(node.changes))
        assert (node.changes[-1].phase, node.changes[-1].refusal) == (REFUSED, "attempt 1 was already on this node")
        assert node.attempts.statuses() == []
        assert node.log() == "once\n"


async def test_a_job_of_another_cluster_finds_nothing_of_the_one_that_had_its_id_before(agent):
    async with agent() as node:
        await node.run(python("print('of the first')"))
        await node.attempts.forget("1", 1)
        for folder in ("workdirs/1", "unsealed"):
            (node.dir / folder).mkdir(parents=True)
        node.attempts.leave_cluster()
        assert not any((node.dir / folder).exists() for folder in ("workdirs", "unsealed"))
        node.attempts.join("c2")
        assert (await node.run(python("print('of the second')"))).phase == EXITED
        assert node.log() == "of the second\n"
        [aside] = node.dir.glob("left-c1-*")
        assert sorted(os.listdir(aside)) == ["attempts", "locks", "unsealed", "workdirs"]
        assert (aside / "attempts" / "1.1" / "output.log").read_text() == "of the first\n"


async def test_what_another_cluster_left_is_set_aside_though_an_agent_was_killed_in_the_middle_of_that(agent):
    async with agent() as node:
        await node.run(python("print('of the first')"))
        await node.attempts.forget("1", 1)
        (node.dir / "left-c1-x").mkdir()
        (node.dir / "attempts").rename(node.dir / "left-c1-x" / "attempts")
    async with agent() as node:
        node.attempts.leave_cluster()
        node.attempts.join("c2")
        assert (await node.run(python("print('of the second')"))).phase == EXITED


async def test_a_node_that_tries_again_and_again_to_join_another_cluster_leaves_one_directory(agent):
    async with agent() as node:
        await node.run(python("print('of the first')"))
        await node.attempts.forget("1", 1)
        for _ in range(3):  # the disk may be too full to store the other cluster
            node.attempts.leave_cluster()
        assert len(list(node.dir.glob("left-*"))) == 1


async def test_everything_works_below_a_directory_too_deep_for_a_socket():
    with tempfile.TemporaryDirectory(prefix="ebb-") as top:
        disk = Path(top, *(["d" * 40] * 4))
        disk.mkdir(parents=True)
        node = Node(disk)
        await node.attempts.start()
        await node.launch(python("import time; print('up', flush=True); time.sleep(600)"))
        await node.running(line="up")
        await node.attempts.close()
        node = Node(disk)
        await node.attempts.start()
        assert node.status().phase == RUNNING
        assert (await node.stop(0.0)).exit.signal == 9
        await node.until(lambda: not node.processes())
        await node.attempts.close()
