"""Sealing what several nodes wrote: the first one waits until the others have ended."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import pytest
from ebbtide import checkpoints
from ebbtide_agent.supervisor.sealing import other_nodes, settling
from ebbtide_agent.supervisor.sealing.evidence import CheckpointContents, StopConduct
from ebbtide_agent.supervisor.sealing.settling import LeftFiles
from ebbtide_agent.supervisor.status import WireCheckpointed
from ebbtide_protos.v1 import job_pb2

from tests.agent.contract.test_environment import PLAIN
from tests.agent.supervisor.node import EXITED, Node, order, python

LEAVES = StopConduct(handled=True)
# Begins its shard when it is asked to stop, and completes it once a file allows that.
SAVING = """
import os, pathlib, signal, sys, time
directory = pathlib.Path(os.environ["EBB_CHECKPOINT_DIR"])
def save(*_):
    with open(directory / f"shard-{os.environ['EBB_NODE_RANK']}", "w") as shard:
        shard.write("half")
        shard.flush()
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        shard.write(" and half")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def second(agent, disk):
    """Two nodes that share a checkpoint root, for the length of a `with`."""

    @asynccontextmanager
    async def make():
        (disk / "checkpoints").mkdir()
        (disk / "second").mkdir()
        (disk / "second" / "checkpoints").symlink_to(disk / "checkpoints")
        later = Node(disk / "second")
        await later.attempts.start()
        try:
            async with agent() as first:
                yield first, later
                await later.end_all()
        finally:
            await later.attempts.close()

    return make


async def launch(node, rank, command, **options):
    """Launch the node's part of an attempt on two nodes."""
    launch = order(command, **options)
    launch.num_nodes, launch.node_rank, launch.master_addr, launch.master_port = 2, rank, "127.0.0.1", 20001
    await node.attempts.launch(launch)


async def saving_on(first, later, disk):
    """Run a part on each node; the first may save at once, the other one once `disk / "go"` exists."""
    for rank, (node, may) in enumerate([(first, disk), (later, disk / "go")]):
        await launch(node, rank, python(SAVING, str(may)))
        await node.running(line="up")


async def test_the_first_node_seals_when_the_last_one_has_written_its_part(second, disk):
    async with second() as (first, later):
        await saving_on(first, later, disk)
        directory = first.checkpoints / "1" / "attempt-1"
        for node in (first, later):
            await node.attempts.stop("1", 1, 30.0)
        await first.until(lambda: not first.jobs() and (directory / "shard-1").exists())
        assert not (directory / checkpoints.MANIFEST).exists()
        (disk / "go").touch()
        status = await first.end()
        assert status.exit.checkpointed == job_pb2.CHECKPOINTED_YES
        assert status.checkpoint.bytes == 2 * len("half and half")
        assert checkpoints.verify(directory).complete
        await later.end()


async def test_a_part_that_is_killed_while_it_is_written_makes_the_whole_cut_short(second, disk):
    async with second() as (first, later):
        await saving_on(first, later, disk)
        for node in (first, later):
            await node.attempts.stop("1", 1, 1.0)
        status = await first.end()
        assert (await later.end()).exit.killed
        assert (status.exit.killed, status.exit.checkpointed) == (False, job_pb2.CHECKPOINTED_UNKNOWN)
        assert checkpoints.verify(first.checkpoints / "1" / "attempt-1").cut_short


async def test_a_second_stop_shortens_the_wait_for_the_others_too(second, disk):
    async with second() as (first, later):
        await saving_on(first, later, disk)
        shard = first.checkpoints / "1" / "attempt-1" / "shard-1"
        for grace_s in (600.0, 0.0):
            for node in (first, later):
                await node.attempts.stop("1", 1, grace_s)
            await first.until(lambda: not first.jobs() and shard.exists())
        await first.end()
        await later.end()
        assert checkpoints.verify(shard.parent).cut_short


async def test_the_first_node_waits_for_none_that_was_not_launched(agent, disk):
    async with agent() as first:
        await launch(first, 0, python(SAVING, str(disk)))
        await first.running(line="up")
        began = time.monotonic()
        await first.stop(grace_s=30.0)
        assert time.monotonic() - began < 15.0
        assert checkpoints.verify(first.checkpoints / "1" / "attempt-1").complete


async def test_a_first_node_that_ends_unasked_does_not_wait_because_the_others_are_stopped_after_it(second, disk):
    async with second() as (first, later):
        await launch(later, 1, python(SAVING, str(disk / "go")))
        await later.running(line="up")
        await launch(first, 0, ["sh", "-c", 'echo 1 > "$EBB_CHECKPOINT_DIR/state"'])
        assert (await first.end()).phase == EXITED
        assert checkpoints.verify(first.checkpoints / "1" / "attempt-1").complete


@pytest.fixture
def attempt(disk):
    """The first node's part of an attempt on two nodes, of which the other one has begun."""
    attempt = replace(PLAIN, attempt=1, num_nodes=2, node_dir=str(disk), job_checkpoint_dir=str(disk))
    attempt.checkpoint_dir.mkdir()
    (attempt.checkpoint_dir / "shard-1").write_text("half")
    other_nodes.begin(disk / "nodes-1", 1)
    return attempt


def settled(attempt, others_s=0.0):
    """What the first node, which ended well, makes of what lies there."""
    nothing, left = CheckpointContents(frozenset()), LeftFiles(1, complete=True, asked=True)
    return settling.settle(attempt, left, nothing, LEAVES, False, others_s)


@pytest.mark.parametrize("word", ["", "{", "[1]", '{"attempt": "x"}'])
def test_what_a_node_wrote_that_tells_nothing_sensible_in_time_may_be_unfinished(attempt, disk, word):
    (disk / "nodes-1" / "1").write_text(word)
    assert settled(attempt, 0.2)["checkpointed"] is WireCheckpointed.UNKNOWN
    found = checkpoints.verify(attempt.checkpoint_dir)
    assert (found.complete, found.cut_short) == (False, False)


def test_a_node_that_failed_when_it_was_asked_leaves_the_save_in_doubt(attempt, disk):
    later = replace(attempt, node_rank=1)
    settling.settle(later, LeftFiles(1, complete=True, doubtful=True, asked=True), None, LEAVES, False)
    settled(attempt)
    assert checkpoints.verify(attempt.checkpoint_dir).cut_short


def test_a_later_node_whose_end_is_lost_tells_that_too(attempt, disk):
    settling.settle_lost(str(disk), "17", 1, asdict(LeftFiles(1, cut_short=("shard-1",))))
    told = json.loads((disk / "nodes-1" / "1").read_text())
    assert (told["complete"], told["cut_short"]) == (False, ["shard-1"])
    assert settled(attempt) == {"checkpoint": None, "checkpointed": WireCheckpointed.NO}


def test_a_folder_that_cannot_be_listed_is_a_node_that_has_told_nothing(disk):
    (disk / "nodes-1").touch()
    assert other_nodes.told(disk / "nodes-1") == [{}]


async def test_what_is_sealed_before_the_next_attempt_is_judged_by_what_all_nodes_told(agent):
    async with agent() as node:
        await node.run(["sh", "-c", 'echo 1 > "$EBB_CHECKPOINT_DIR/state"'])
        job_dir = node.checkpoints / "1"
        (job_dir / "attempt-1" / checkpoints.MANIFEST).unlink()
        intent = replace(PLAIN, job_id="1", node_dir=str(node.dir), job_checkpoint_dir=str(job_dir))
        settling.note(intent, LeftFiles(1, complete=True, asked=True))
        other_nodes.begin(job_dir / "nodes-1", 1)
        other_nodes.tell(job_dir / "nodes-1", 1, asdict(LeftFiles(1, cut_short=("shard-1",))))
        await node.run(["true"], attempt=2)
        assert checkpoints.verify(job_dir / "attempt-1").cut_short


async def test_a_node_is_heard_as_soon_as_it_tells(disk):
    other_nodes.begin(disk, 1)
    waiting = asyncio.create_task(asyncio.to_thread(other_nodes.wait, disk, 60.0))
    other_nodes.tell(disk, 1, asdict(LeftFiles(1)))
    await asyncio.wait_for(waiting, 30.0)
