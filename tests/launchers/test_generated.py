"""Job scripts by chance, asked to suspend at a moment by chance: what a witness notes is what the contract says."""

import os
import random
from dataclasses import dataclass

import pytest

from tests.agent.supervisor.node import OVER
from tests.launchers.generated import script

GRACE_S = 20.0


@dataclass(frozen=True)
class Note:
    """A line of the journal; times are seconds since boot."""

    what: str
    kind: str
    pid: int
    forked_at: float
    at: float

    @classmethod
    def of(cls, line):
        what, kind, pid, forked_at, at = line.split()
        return cls(what, kind, int(pid), float(forked_at), float(at))


def journal(folder):
    path = folder / "journal"
    return [Note.of(line) for line in path.read_text().splitlines()] if path.exists() else []


def who(notes, *what):
    return {note.pid for note in notes if note.what in what}


async def suspended(node, folder, text, dice):
    """Run the script, and ask it to leave when some of it has begun; who runs then until it is asked."""
    (folder / "job.sh").write_text(text)
    environment = {"PATH": os.environ["PATH"], "JOURNAL": str(folder / "journal")}
    await node.launch(["bash", "job.sh"], workdir=str(folder), env=environment, grace_s=GRACE_S)
    most = dice.randint(1, 8)

    def is_so_far():
        notes = journal(folder)
        return len(who(notes, "began")) >= most or who(notes, "up") or node.status().phase in OVER

    await node.until(is_so_far)
    running = who(journal(folder), "up")
    status = await node.stop(GRACE_S)
    return running, status


def check(notes, running, status):
    asked = [note.at for note in notes if note.what == "asked"]
    late = [note for note in notes if note.what == "began" and asked and note.forked_at > min(asked)]
    assert {note.kind for note in late} <= {"tidy"}, "something was begun after the request"
    offered = {note.pid for note in notes if note.kind in ("saves", "takes-part")}
    assert running & offered <= who(notes, "saved"), "a save was lost"
    assert not status.exit.killed, "somebody had not left at the end of the grace period"


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 500))])
async def test_a_script_that_is_asked_to_suspend_begins_nothing_more_loses_no_save_and_leaves_nobody(
    agent, tmp_path, seed
):
    dice = random.Random(seed)
    text = script(dice)
    async with agent() as node:
        running, status = await suspended(node, tmp_path, text, dice)
        notes = journal(tmp_path)
        try:
            check(notes, running, status)
            assert not node.jobs()
        except AssertionError:
            print(text, *notes, f"running: {running}", status, node.log(), sep="\n")
            raise
