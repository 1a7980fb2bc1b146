"""A launch that fails for whatever reason is refused, with what failed, and blames nothing else."""

import errno

import pytest
from ebbtide_agent.attempts import recovery
from ebbtide_agent.files.snapshots import SnapshotCache
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import REFUSED, order, python


async def test_what_fails_on_the_way_to_a_launch_is_no_fault_of_the_checkpoint(
    agent: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def place(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(SnapshotCache, "place", place)
    async with agent() as node:
        launch = order(python("pass"), snapshot=job_pb2.Snapshot(digest="x", bytes=1))
        await node.attempts.launch(launch)
        await node.until(lambda: node.changes and node.changes[-1].phase == REFUSED)
        status = node.changes[-1]
        assert status.refusal == "what it needs could not be brought here: RecursionError: too deep"
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_UNSPECIFIED
        assert node.attempts.statuses() == []


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), OSError(errno.EMFILE, "Too many open files")],
    ids=["threads", "descriptors"],
)
async def test_a_launch_for_which_nothing_can_be_asked_any_more_is_refused(
    agent: MakeNode, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("ebbtide_agent.helper.asking.on_daemon_thread", fails)
    async with agent() as node:
        launch = order(python("pass"))
        launch.spec.needs.require_paths.append("/")
        await node.attempts.launch(launch)
        status = node.changes[-1]
        assert (status.phase, str(error) in status.refusal) == (REFUSED, True), status
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_UNSPECIFIED
        assert node.attempts.statuses() == []


async def test_a_launch_of_which_no_note_can_be_taken_is_refused(
    agent: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recovery, "record_refusal", full)
    async with agent() as node:
        await node.attempts.launch(order(python("pass"), failover_after_s=1.0))
        status = node.changes[-1]
        assert (status.phase, "No space left on device" in status.refusal) == (REFUSED, True), status
        assert node.attempts.statuses() == []
