"""An attempt whose checkpoint is on another node: it starts once that has arrived, or not at all."""

from pathlib import Path

from ebbtide import checkpoints
from ebbtide_agent.files.exchange import answer_of, arguments_of
from ebbtide_agent.files.reading import read
from ebbtide_protos.v1 import agent_pb2

from tests.agent.supervisor.conftest import MakeNode, agent, disk  # noqa: F401
from tests.agent.supervisor.node import LAUNCHING, REFUSED, Node, order, python

RESUME = ["sh", "-c", 'cat "$EBB_RESUME_DIR/state"']


def another_node(folder: Path) -> Path:
    """The job's directory on another node, with a checkpoint of its first attempt."""
    job_dir = folder / "elsewhere"
    checkpoints.publish(job_dir / "attempt-1", 5, lambda d: (d / "state").write_text("at 5\n"), job_id="1", attempt=1)
    return job_dir


def connect(node: Node, job_dir: Path) -> None:
    def ask(request: agent_pb2.ReadCheckpoint) -> None:
        data = answer_of(read(*arguments_of(job_dir, request)))
        data.request_id = request.request_id
        node.exchange.answer(data)

    node.exchange.attach(ask)


def launch(command: list[str] = RESUME) -> agent_pb2.Launch:
    launch = order(command, attempt=2, needs_checkpoint=True)
    launch.move_checkpoint = True
    return launch


def refused(node: Node) -> agent_pb2.AttemptStatus | None:
    return next((status for status in node.changes if status.phase == REFUSED), None)


async def test_it_starts_from_what_was_copied(agent: MakeNode, tmp_path: Path) -> None:  # noqa: F811
    async with agent() as node:
        connect(node, another_node(tmp_path))
        await node.attempts.launch(launch())
        await node.until(lambda: any(status.exit.ended_at for status in node.changes))
        assert node.log(attempt=2) == "at 5\n"
        assert node.status(attempt=2).resumed_step == 5


async def test_while_it_is_copied_the_attempt_is_known_and_starts_once(agent: MakeNode, tmp_path: Path) -> None:  # noqa: F811
    async with agent() as node:
        await node.attempts.launch(launch())
        await node.attempts.launch(launch())
        assert [status.phase for status in node.attempts.statuses()] == [LAUNCHING]
        connect(node, another_node(tmp_path))
        await node.until(lambda: any(status.exit.ended_at for status in node.changes))
        assert node.log(attempt=2) == "at 5\n"


async def test_one_that_is_stopped_meanwhile_never_starts(agent: MakeNode) -> None:  # noqa: F811
    async with agent() as node:
        await node.attempts.launch(launch())
        await node.attempts.stop("1", 2, 30.0)
        assert node.attempts.statuses() == []
        status = refused(node)
        assert status is not None
        assert status.refusal == "it was asked to stop before all that it needs was here"
        assert not node.place(attempt=2).path.exists()


async def test_a_copy_that_fails_is_a_refusal_that_says_so(agent: MakeNode, tmp_path: Path) -> None:  # noqa: F811
    async with agent() as node:
        connect(node, tmp_path / "nothing")
        await node.attempts.launch(launch(python("pass")))
        await node.until(lambda: refused(node) is not None)
        status = refused(node)
        assert status is not None
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_NOT_MOVED
        assert status.refusal == "its checkpoint could not be copied: the node that had it has none that verifies"
