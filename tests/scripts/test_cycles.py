"""Two hundred times suspended, killed, orphaned and adopted: nobody is left, and never are there two.

Nine agents end while an attempt of theirs runs: four as agents do, five by SIGKILL while it starts or when it is up.
"""

import fcntl
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.agent.supervisor.node import EXITED, LAUNCHING, REFUSED, RUNNING, order
from tests.agent.supervisor.test_adoption import other_agent, reported
from tests.scripts.cases import SCRIPTS

AGENTS, CYCLES = 10, 20
LOCKS = ("leader.lock", "child.lock")
ASKED = "it was asked to stop before it could start: "
DIED = "its supervisor died before it could start the attempt"


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_hundred_suspensions_and_kills_leave_no_survivor_and_make_no_second_copy(agent, disk):
    chance = random.Random(4)
    attempt = 0
    for number in range(AGENTS):
        last, killed = number == AGENTS - 1, number % 2 == 0
        async with agent(leave=not last) as node:
            if number:  # what the agent before this one left running
                if attempt not in [status.attempt for status in node.attempts.statuses()]:
                    await start(node, disk, attempt, wait=False)  # it was killed too early: the master says it again
                await end(node, disk, attempt, chance, of_a_killed_agent=number % 2 == 1)
            for _ in range(CYCLES - 1):
                attempt += 1
                await start(node, disk, attempt, wait=chance.random() < 0.9)
                await end(node, disk, attempt, chance)
            attempt += 1
            if last or not killed:
                await start(node, disk, attempt, wait=True)
            if last:
                await end(node, disk, attempt, chance)
        if killed and not last:
            start_with_an_agent_that_is_killed(disk, attempt, chance.choice([LAUNCHING, RUNNING]))
    assert attempt == AGENTS * CYCLES


def witness(disk):
    return [sys.executable, "-S", str(SCRIPTS / "witness.py"), str(disk)]


def start_with_an_agent_that_is_killed(disk, attempt, phase):
    """SIGKILL it as soon as it reports this phase of the attempt that it was told to start."""
    with other_agent(disk, order(witness(disk), attempt=attempt)) as process:
        reported(process, phase)
        process.kill()


async def start(node, disk, attempt, wait):
    """Launch the witness; what `wait` leaves out is asked to stop while it starts."""
    await node.launch(witness(disk), attempt=attempt)
    if wait:
        await node.until(lambda: node.log(attempt=attempt) == "up\nup\n")


async def end(node, disk, attempt, chance, of_a_killed_agent=False):
    """End the attempt in one way or another, and look who is left.

    What never ran may be refused, because it was asked to leave before, or because a killed agent had not started it.
    """
    ran = node.log(attempt=attempt) == "up\nup\n"
    match chance.choice(["suspend", "kill", "suspend and kill", "lose the supervisor", "start a second copy"]):
        case "suspend":
            await node.stop(attempt=attempt)
        case "kill":
            await node.stop(0.0, attempt=attempt)
        case "suspend and kill":
            await node.attempts.stop("1", attempt, 30.0)
            await node.stop(0.0, attempt=attempt)
        case "lose the supervisor":
            await node.running(attempt=attempt)
            os.kill(node.supervisor(attempt=attempt).pid, signal.SIGKILL)
            assert (await node.end(attempt=attempt)).lost
        case "start a second copy":
            await start(node, disk, attempt + 1000, wait=False)
            second = await node.end(attempt=attempt + 1000)
            assert (second.phase, second.refusal) == (REFUSED, f"node still runs attempt {attempt}")
            await node.stop(attempt=attempt)
    over = await node.end(attempt=attempt)
    if over.phase == REFUSED:
        assert not ran
        assert over.refusal.startswith(ASKED) or (of_a_killed_agent and over.refusal == DIED), over.refusal
        assert "up" not in node.log(attempt=attempt)
    else:
        assert over.phase == EXITED
    assert [lock for lock in LOCKS if is_held(disk / lock)] == []
    assert not (disk / "overlap").exists()
    assert node.jobs() == []


def is_held(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
