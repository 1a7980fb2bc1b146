"""An agent whose node ends lets its attempts save and end in time, though no master is there to ask them."""

import asyncio
import errno
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from ebbtide_agent.attempts import backstop
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.node_end import MARGIN_S, NodeEnd
from ebbtide_agent.supervisor.launching.launch_wait import LaunchWait
from ebbtide_machine.process import Identity, boot_id
from ebbtide_protos.v1 import agent_pb2

from tests.agent.supervisor.node import EXITED, RUNNING, Node, python
from tests.agent.supervisor.test_lease import SAVES, UP


@asynccontextmanager
async def watched(node: Node) -> AsyncIterator[NodeEnd]:
    """The end of the node, which attempts leave in time."""
    end = NodeEnd(agent_pb2.Loan(until=time.time() + 3600.0))
    leaving = asyncio.create_task(end.run(node.attempts.supervised))
    yield end
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving


async def start(node: Node, command: list[str], grace_s: float) -> None:
    await node.launch(command, grace_s=grace_s)
    await node.until(lambda: node.status().phase == RUNNING and "up" in node.log())


async def test_what_is_left_saves_and_ends_before_the_node_is_gone_and_counts_as_interrupted(agent) -> None:
    async with agent() as node, watched(node) as end:
        await start(node, SAVES, grace_s=20.0)
        end.hear(time.time() + 20.0 + MARGIN_S + 0.5)
        status = await node.end()
        assert (status.phase, status.exit.exit_code, status.exit.fenced) == (EXITED, 85, True)


async def test_an_attempt_that_its_master_asked_before_is_only_given_less_time(agent) -> None:
    deaf = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
    async with agent() as node, watched(node) as end:
        await start(node, deaf, grace_s=300.0)
        await node.attempts.stop("1", 1, 300.0)
        end.hear(time.time() + 2.0)
        status = await node.end()
        assert (status.phase, status.exit.killed, status.exit.fenced) == (EXITED, True, False)


def orders_after(*orders: dict[str, object]) -> list[dict[str, object]]:
    """What an attempt obeys first when it runs, if these orders came while it was prepared."""
    ours, supervisors = socket.socketpair()
    with ours, supervisors, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen()
        ours.sendall(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
        waiting = LaunchWait(supervisors, b"", listener, None, 0.0, Worker(None))
        waiting.leased_at()
        [(_, received)] = waiting.received()
        return [json.loads(line) for line in received.splitlines()]


def test_an_attempt_that_is_asked_while_it_is_prepared_counts_as_interrupted_when_it_runs() -> None:
    leave, stop = {"do": "stop", "grace_s": 60.0, "fenced": True}, {"do": "stop", "grace_s": 60.0}
    assert orders_after(leave)[0]["fenced"] is True
    assert orders_after(leave, stop)[0]["fenced"] is True
    assert orders_after(stop, leave)[0]["fenced"] is False


async def test_an_attempt_that_is_asked_while_its_supervisor_is_not_reached_counts_as_interrupted(agent) -> None:
    async with agent() as node:
        await start(node, SAVES, grace_s=20.0)
        [attempt] = node.attempts.supervised()
        attempt._give_up()
        attempt.leave_alone(20.0)
        status = await node.end()
        assert (status.exit.exit_code, status.exit.fenced) == (85, True)


async def test_an_attempt_that_is_killed_because_its_supervisor_hangs_counts_as_interrupted(agent, monkeypatch) -> None:
    monkeypatch.setattr(backstop, "END_S", 600.0)
    async with agent() as node:
        await start(node, UP, grace_s=20.0)
        job, supervisor = Identity.of(node.status().pid), node.supervisor()
        supervisor.signal(signal.SIGSTOP)
        [attempt] = node.attempts.supervised()
        attempt.leave_alone(0.0)
        await node.until(lambda: not job.is_alive())
        assert node.place().killed_overdue() is True
        supervisor.signal(signal.SIGCONT)
        assert (await node.end()).exit.fenced


def test_a_notice_on_the_machine_counts_until_its_next_boot_and_a_later_word_of_the_master_before_it(
    tmp_path: Path,
) -> None:
    said, notice = agent_pb2.Loan(until=9e9, owner="ann"), tmp_path / "notice.json"
    end = NodeEnd(said, notice)
    assert (end.until, end.own, end.look_for_notice()) == (9e9, said, False)
    notice.write_text(json.dumps({"until": 5e9, "boot_id": boot_id()}))
    assert (end.look_for_notice(), end.until, end.own) == (True, 5e9, agent_pb2.Loan(until=5e9, owner="ann"))
    assert not end.look_for_notice(), "it is known"
    end.hear(6e9)
    assert (end.until, end.own.until) == (6e9, 5e9)
    end.hear(None)
    assert end.until == 5e9
    assert NodeEnd(said, notice).until == 5e9, "another agent knows it, too"
    notice.write_text(json.dumps({"until": 5e9, "boot_id": "another"}))
    assert NodeEnd(said, notice).until == 9e9
    notice.write_text("[")
    assert NodeEnd(said, notice).until == 9e9


def test_what_is_announced_without_a_notice_holds_until_the_next_notice(tmp_path: Path) -> None:
    notice = tmp_path / "notice.json"
    notice.write_text(json.dumps({"until": 5e9, "boot_id": boot_id()}))
    end = NodeEnd(None, notice)
    end.announce(6e9, "ann")
    assert end.look_for_notice()
    assert (end.until, end.own.owner) == (6e9, "ann")
    assert not end.look_for_notice(), "it is not new any more"
    notice.write_text(json.dumps({"until": 4e9, "boot_id": boot_id()}))
    assert end.look_for_notice()
    assert end.until == 4e9


def test_what_is_announced_goes_before_an_older_notice_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = tmp_path / "notice.json"
    notice.write_text(json.dumps({"until": 5e9, "boot_id": boot_id()}))
    end = NodeEnd(None, notice)
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))))
    end.announce(6e9, "ann")
    assert (end.look_for_notice(), end.until) == (True, 6e9)
    assert (end.look_for_notice(), end.until) == (False, 6e9)


def test_a_notice_that_is_taken_back_leaves_what_was_said_before(tmp_path: Path) -> None:
    notice = tmp_path / "notice.json"
    notice.write_text(json.dumps({"until": 5e9, "boot_id": boot_id()}))
    end = NodeEnd(None, notice)
    assert end.until == 5e9
    notice.unlink()
    assert (end.look_for_notice(), end.until, end.own) == (False, None, None)
