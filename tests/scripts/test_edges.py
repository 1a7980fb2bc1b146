"""What the table cannot say: moments, second attempts, and who is left."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide import checkpoints
from ebbtide_master.convert import CHECKPOINTED_MESSAGES
from ebbtide_protos.v1 import job_pb2

from tests.scripts.cases import (
    CASES,
    COMPLETED,
    NO,
    OUT_OF_DISK,
    SCRIPTS,
    SUSPENDED,
    UNKNOWN,
    YES,
    Case,
    launch,
    log,
    python,
    read,
    saved,
    suspend,
    torchrun,
    up,
    went_on_from,
)

NAMED = {case.script.split("`")[1]: case for case in CASES}


def state(node, attempt):
    return (node.checkpoints / "1" / f"attempt-{attempt}" / "state").read_text()


async def test_a_job_that_ignores_the_signal_is_killed_at_the_end_of_its_grace_period_and_not_before(agent):
    case = NAMED["ignores_sigterm.py"]
    async with agent() as node:
        exit = (await suspend(node, case)).exit
        assert exit.signal == signal.SIGKILL
        assert case.grace_s <= exit.ended_at - exit.stop_requested_at < case.grace_s + 10.0


@pytest.mark.slow
async def test_torchrun_gives_up_on_its_workers_before_the_grace_period_ends_and_not_after_its_own_half_minute(agent):
    command = torchrun("runs_under_torchrun.py", "never")
    options = {"signal_target": job_pb2.SIGNAL_TARGET_LEADER}
    case = replace(NAMED["runs_under_torchrun.py"], command=command, grace_s=20.0, options=options)
    async with agent() as node:
        exit = (await suspend(node, case)).exit
        assert (exit.exit_code, exit.killed) == (1, False)
        assert 14.0 < exit.ended_at - exit.stop_requested_at < case.grace_s


async def test_none_that_got_away_survives(agent):
    async with agent() as node:
        await suspend(node, NAMED["double_forks.py"])
        escaped = [line.split()[1] for line in log(node).splitlines() if line.startswith("escaped")]
        assert len(escaped) == 3
        assert not [pid for pid in escaped if Path("/proc", pid).exists()]


async def test_the_helper_of_a_process_that_waits_for_the_signal_is_left_alone(agent):
    async with agent() as node:
        await suspend(node, NAMED["waits_for_the_signal.py"])
        assert "helper lives" in log(node)


async def test_a_whole_log_of_a_hundred_megabytes_is_kept(agent):
    async with agent() as node:
        await suspend(node, NAMED["prints_too_much.py"])
        [written] = [int(line.split()[1]) for line in log(node).splitlines() if line.startswith("written")]
        assert written >= 100_000_000
        assert node.place().output.stat().st_size > written


async def test_a_launched_process_that_is_to_be_the_only_one_told_is_the_only_one(agent):
    case = replace(NAMED["bash_without_exec.sh"], options={"signal_target": job_pb2.SIGNAL_TARGET_LEADER})
    async with agent() as node:
        status = await suspend(node, case)
        assert status.exit.signal == signal.SIGTERM
        assert not status.exit.caught
        assert saved(log(node)) == []


async def test_a_save_that_was_cut_short_is_passed_over_for_the_last_good_one(agent):
    slow = NAMED["saves_too_slowly.py"]
    async with agent() as node:
        await suspend(node, replace(slow, command=[*slow.command, "quick"], dies_after=""))
        [good] = saved(log(node))
        status = await suspend(node, slow, attempt=2)
        assert status.exit.killed
        assert not status.HasField("checkpoint")
        assert state(node, 2) != str(good)
        await launch(node, slow, attempt=3)
        await up(node, slow, attempt=3)
        assert went_on_from(log(node, attempt=3)) == [good]


LEAVES_A_HELPER = """
import os, signal, subprocess, sys, time
folder = os.environ["EBB_CHECKPOINT_DIR"]
def leave(*_):
    helpers.append(subprocess.Popen([sys.executable, "-S", "-c", late, folder], stdout=subprocess.PIPE))
    helpers[-1].stdout.readline()
    open(f"{folder}/state", "w").write("1")
    os._exit(85)
helper = "import sys, time; held = open(f'{sys.argv[1]}/%s', 'w'); held.write('x'); held.flush(); print(flush=True); "
helper += "time.sleep(600)"
early, late = helper % "run.log", helper % sys.argv[1] if len(sys.argv) > 1 else "print()"
helpers = [subprocess.Popen([sys.executable, "-S", "-c", early, folder], stdout=subprocess.PIPE)]
helpers[0].stdout.readline()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("late", "checkpointed"), [([], YES), (["weights"], UNKNOWN)], ids=["a log", "a save"])
async def test_what_a_helper_writes_when_the_script_has_left_is_a_log_or_half_a_save(agent, late, checkpointed):
    """A log was open before the request already; what is new and still open is a save that nobody waited for."""
    case = Case("", ["python", "-S", "-c", LEAVES_A_HELPER, *late], checkpointed)
    async with agent() as node:
        status = await suspend(node, case)
        assert (status.exit.exit_code, status.exit.killed) == (85, False)
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[checkpointed]
        sealed = checkpoints.verify(node.checkpoints / "1" / "attempt-1")
        assert sealed.cut_short == bool(late)


@pytest.mark.parametrize("case", OUT_OF_DISK, ids=lambda case: case.script)
async def test_a_job_that_runs_out_of_disk_while_it_saves_goes_on_from_the_checkpoint_before(agent, case):
    async with agent() as node:
        first = await suspend(node, case)
        assert (first.exit.exit_code, first.exit.checkpointed) == (85, job_pb2.CHECKPOINTED_YES)
        second = await suspend(node, case, attempt=2)
        assert "No space left on device" in log(node, attempt=2)
        assert (second.exit.exit_code, second.exit.acknowledged) == (1, False)
        assert second.exit.checkpointed == CHECKPOINTED_MESSAGES[case.checkpointed]
        outcome = read(second, case)
        assert (outcome.ending, outcome.clean) == (case.ending, case.clean)
        await launch(node, case, attempt=3)
        await up(node, case, attempt=3)
        [began] = went_on_from(log(node, attempt=3))
        assert began == went_on_from(log(node, attempt=2))[0] > 0


async def test_on_a_disk_without_room_for_its_manifest_nothing_is_sealed(agent, monkeypatch):
    """A supervisor is forked from a process of its own, so the disk itself has to refuse: a directory in the way."""
    case = NAMED["traps_and_exits.py 85"]
    async with agent() as node:
        await launch(node, case)
        await up(node, case)
        (node.checkpoints / "1" / "attempt-1" / f".{checkpoints.MANIFEST}").mkdir()
        status = await node.stop()
        assert not status.HasField("checkpoint")
        assert status.exit.checkpointed == job_pb2.CHECKPOINTED_UNKNOWN


ALLOWED = {"": {COMPLETED, SUSPENDED}, "asks": {COMPLETED}, "traps": {COMPLETED, SUSPENDED}}


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ALLOWED)
async def test_a_job_that_finishes_at_the_very_moment_of_the_request_has_one_defined_outcome(
    agent, tmp_path, how, times
):
    """Whichever is first: completed if it ended before the signal reached it, or said that it asks; else suspended."""
    async with agent() as node:
        for attempt in range(1, times + 1):
            pipe = tmp_path / str(attempt)
            os.mkfifo(pipe)
            case = Case("", python("finishes.py", str(pipe), how), NO)
            await launch(node, case, attempt)
            await up(node, case, attempt)
            writer = os.open(pipe, os.O_WRONLY)
            os.close(writer)
            status = await node.stop(attempt=attempt)
            outcome = read(status, case)
            assert outcome.ending in ALLOWED[how], outcome.reason
            exit = status.exit
            if exit.stop_requested and exit.exit_code == exit.signal == 0:
                finished = not exit.delivered or not exit.caught or exit.asked
                assert (outcome.ending is COMPLETED) == finished
            assert not node.jobs()


async def test_a_script_with_a_directory_of_common_names_beside_it_finds_its_own(agent):
    async with agent() as node:
        await suspend(node, NAMED["own_modules/train.py"])
        assert "the user's agent and the user's master" in log(node)


@pytest.mark.parametrize(
    "script", [case.command[-1] for case in CASES if Path(case.command[-1]).suffix == ".sh" and not case.options]
)
async def test_a_shell_begins_nothing_after_the_request_but_what_its_traps_say(agent, script):
    async with agent() as node:
        await suspend(node, Case("", ["bash", script], YES))
        after = log(node).partition("saved")[2].splitlines()[1:]
        # A trap that returns says by that that the script goes on.
        assert after in ([], ["trapped", "the script left with 85"], ["tidied up"]), after
        assert log(node).count("seed") <= 1


def test_every_script_is_used():
    used = {Path(word).name for case in (*CASES, *OUT_OF_DISK) for word in case.command} | {"finishes.py"}
    scripts = {path.name for path in SCRIPTS.iterdir() if path.suffix in (".py", ".sh")}
    helpers = {"training.py", "cases.py", "conftest.py", "witness.py"}
    assert {name for name in scripts if not name.startswith("test_")} - helpers <= used
