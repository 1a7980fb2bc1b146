"""What is left of attempts when everything that the agent knew of them is gone."""

import os
import shutil
import signal
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from ebbtide_agent.attempts import orphans, survivors

from tests.agent.supervisor.node import EXITED, FREED, REFUSED, RUNNING, gpus, python
from tests.agent.supervisor.test_adoption import DAEMON
from tests.agent.supervisor.test_unkillable import fail_once, sleeps_in_kernel
from tests.attacks.hung import hung
from tests.attacks.test_hung import ASLEEP
from tests.e2e.cluster import wait_for

SLEEP = python("print('up', flush=True); import time; time.sleep(600)")


async def lose_everything(agent, command=SLEEP, **options):
    """Launch it, and have its agent end and the whole directory of the node disappear."""
    async with agent(leave=True) as node:
        await node.launch(command, gpus=gpus(2), **options)
        await node.running(line="up")
        left = [process for process in node.processes() if process != node.supervisor()]
    shutil.rmtree(node.dir)
    return left


@pytest.mark.parametrize(
    "command",
    [pytest.param(SLEEP, id="by its environment"), pytest.param(DAEMON, id="by the lock", marks=pytest.mark.slow)],
)
async def test_its_processes_are_found_and_told_of_with_the_gpus_that_they_have(agent, command):
    await lose_everything(agent, command)
    async with agent() as node:
        status = node.status()
        assert (status.phase, status.orphan, status.started_at) == (RUNNING, True, 0.0)
        assert list(status.gpus) == ["GPU-0", "GPU-1"]
        assert [piece.uuid for piece in node.attempts.holders.allocation("1", 1)] == ["GPU-0", "GPU-1"]
        assert set(node.attempts.holders.pids()) == {("1", 1)}


async def test_no_other_attempt_of_the_job_starts_while_one_lives(agent):
    left = await lose_everything(agent)
    async with agent() as node:
        status = await node.run(SLEEP, attempt=2)
        assert (status.phase, status.refusal) == (REFUSED, "node still runs attempt 1")
        await node.launch(SLEEP)
        assert node.status().orphan
        assert all(process.is_alive() for process in left)


@pytest.mark.slow
async def test_once_nothing_is_left_of_it_its_exit_is_lost_and_its_gpus_are_proven_free(agent):
    left = await lose_everything(agent)
    async with agent() as node:
        for process in left:
            process.signal(signal.SIGKILL)
        status = await node.end()
        assert (status.phase, status.lost, status.orphan) == (EXITED, True, True)
        await node.prove_free(dirty={"GPU-1": "it is full"})
        assert (node.status().phase, list(node.status().dirty_gpus)) == (FREED, ["GPU-1"])
        await node.attempts.forget("1", 1)
        assert node.attempts.statuses() == []


@pytest.mark.slow
async def test_it_can_be_stopped_and_is_killed_at_the_end_of_its_grace(agent):
    deaf = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
    left = await lose_everything(agent, deaf)
    async with agent() as node:
        status = await node.stop(0.5)
        assert (status.phase, status.lost) == (EXITED, True)
        assert not any(process.is_alive() for process in left)


async def test_its_end_is_seen_though_once_no_thread_could_be_started_to_look(agent, monkeypatch):
    left = await lose_everything(agent)
    async with agent() as node:
        raised = fail_once(monkeypatch, orphans)
        for process in left:
            process.signal(signal.SIGKILL)
        assert (await node.end()).lost
        assert raised


@pytest.fixture
def looks(monkeypatch):
    """Every look at all processes, as it returns."""
    made, look = [], survivors.by_any_sign

    def noted(node_dir):
        made.append(look(node_dir))
        return made[-1]

    monkeypatch.setattr(survivors, "by_any_sign", noted)
    return made


@contextmanager
def unkillable(disk):
    """Where whoever opens a file cannot be killed, until the block ends or what is yielded is closed."""
    place = disk / "hung"
    place.mkdir()
    with ExitStack() as stack:
        stack.enter_context(hung(place, deeply=True))
        yield stack


def waits(process):
    return psutil.Process(process.pid).status() in ASLEEP


OPENS = "import sys; print('up', flush=True); open(sys.argv[1])"
# Once it is asked to leave, it has nothing open by which it could be found.
OPENS_LATER = """
import os, signal, sys, time
def leave(*_):
    os.closerange(3, 100)
    open(sys.argv[1])
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.fuse
async def test_one_that_no_kill_ends_is_found_and_no_other_attempt_of_its_job_starts(agent, disk):
    with unkillable(disk) as held:
        [job] = await lose_everything(agent, python(OPENS, str(disk / "hung" / "file")))
        psutil.Process(job.pid).parent().kill()  # its supervisor would be found
        wait_for("it waits", lambda: waits(job))
        job.signal(signal.SIGTERM)
        wait_for("no signal reaches it", lambda: sleeps_in_kernel(job))
        async with agent() as node:
            assert (node.status().phase, node.status().orphan) == (RUNNING, True)
            status = await node.run(SLEEP, attempt=2)
            assert (status.phase, status.refusal) == (REFUSED, "node still runs attempt 1")
            held.close()
            assert (await node.end()).lost


@pytest.mark.fuse
async def test_one_that_no_kill_ends_and_that_no_look_finds_again_is_not_over(agent, disk, looks):
    with unkillable(disk) as held:
        [job] = await lose_everything(agent, python(OPENS_LATER, str(disk / "hung" / "file")))
        async with agent() as node:
            await node.attempts.stop("1", 1, 600.0)
            await node.until(lambda: len(os.listdir(f"/proc/{job.pid}/fd")) == 3 and waits(job))
            await node.attempts.stop("1", 1, 0.0)
            await node.until(lambda: sleeps_in_kernel(job))
            looks.clear()
            await node.until(lambda: len(looks) > 1)
            assert not any(job in found for look in looks for found in look.values())
            assert (job.is_alive(), node.status().phase) == (True, RUNNING)
            status = await node.run(SLEEP, attempt=2)
            assert (status.phase, status.refusal) == (REFUSED, "node still runs attempt 1")
            held.close()
            assert (await node.end()).lost
            assert not job.is_alive()
