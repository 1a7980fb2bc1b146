"""The master between two nodes of which one copies a checkpoint of the other, over real streams."""

from pathlib import Path
from typing import Any

from ebbtide_master.nodes.relay import MOST_OPEN, Relay
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import FREED, REFUSED, RUNNING, STEPPED_ASIDE, Agent, Master, a_master, make_hello


async def moving(master: Master) -> tuple[Agent, Agent, str, agent_pb2.Launch]:
    """A job that stepped aside on n1, where another took its place, and is to go on on n2."""
    first = await master.agent("n1", 1, checkpoint_root_id="r1")
    job = await master.running(first, move_checkpoints=True)
    await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
    await first.receive("stop")
    await first.report(job, 1, FREED, exit=STEPPED_ASIDE)
    await master.becomes(job, "SUSPENDED")
    await master.running(first)
    second = await master.agent("n2", 1, checkpoint_root_id="r2")
    await master.ask.Resume(client_pb2.JobRequest(job_id=job))
    return first, second, job, await second.receive("launch")


def question(job: str, **changes: Any) -> agent_pb2.ReadCheckpoint:
    fields: dict[str, Any] = {"request_id": 77, "job_id": job, "attempt": 2, "file": "x", "max_bytes": 9}
    return agent_pb2.ReadCheckpoint(**(fields | changes))


async def test_questions_reach_the_node_that_has_it_and_answers_come_back(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second, job, launch = await moving(master)
        assert launch.move_checkpoint
        assert "copied from node n1 first" in (await master.show(job)).reason
        await second.send(read_checkpoint=question(job))
        asked = await first.receive("read_checkpoint")
        assert (asked.job_id, asked.attempt, asked.file, asked.max_bytes) == (job, 2, "x", 9)
        await first.send(checkpoint_data=agent_pb2.CheckpointData(request_id=asked.request_id, data=b"123"))
        answer = await second.receive("checkpoint_data")
        assert (answer.request_id, answer.data, answer.error) == (77, b"123", "")


async def test_who_has_no_attempt_to_start_learns_nothing(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second, job, _ = await moving(master)
        third = await master.agent("n3", 0, checkpoint_root_id="r3")
        for agent, asked in ((third, question(job)), (second, question(job, attempt=1)), (second, question("9"))):
            await agent.send(read_checkpoint=asked)
            answer = await agent.receive("checkpoint_data")
            assert (answer.error, answer.away) == ("no attempt waits for it", True)
        assert "read_checkpoint" not in first.heard


async def test_a_node_that_goes_away_leaves_no_question_open(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first, second, job, _ = await moving(master)
        await second.send(read_checkpoint=question(job))
        await first.receive("read_checkpoint")
        first.vanish()
        answer = await second.receive("checkpoint_data")
        assert (answer.request_id, answer.error, answer.away) == (77, "the node that has it went away", True)
        await second.send(read_checkpoint=question(job, request_id=78))
        assert (await second.receive("checkpoint_data")).error == "node n1 is not connected"


async def test_a_copy_that_failed_leaves_the_job_waiting_and_says_why(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        _, second, job, _ = await moving(master)
        cause = agent_pb2.REFUSAL_CAUSE_NOT_MOVED
        await second.report(job, 2, REFUSED, refusal="its checkpoint could not be copied: full", refusal_cause=cause)
        await second.receive("forget")
        reason = (await master.show(job)).reason
        assert reason.endswith("of node n1, where its checkpoint is (its checkpoint could not be copied: full)")


async def test_an_agent_that_copies_while_the_master_restarts_goes_on(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await moving(master)
    async with a_master(tmp_path) as master:
        first = await master.agent("n1", 1, checkpoint_root_id="r1", attempts=[_status("2", 1, RUNNING)])
        launching = _status("1", 2, agent_pb2.ATTEMPT_PHASE_LAUNCHING)
        second = master.connect(make_hello("n2", 1, checkpoint_root_id="r2", attempts=[launching]))
        await second.register()
        await master.until_node("n2", "up")
        await second.send(read_checkpoint=question("1"))
        assert (await first.receive("read_checkpoint")).job_id == "1"
        assert "launch" not in second.heard


def _status(job: str, attempt: int, phase: int) -> agent_pb2.AttemptStatus:
    started = 1000.0 if phase == RUNNING else 0.0
    return agent_pb2.AttemptStatus(job_id=job, attempt=attempt, phase=phase, started_at=started)


class Heard:
    def __init__(self) -> None:
        self.messages: list[agent_pb2.MasterMessage] = []

    def send(self, message: agent_pb2.MasterMessage) -> None:
        self.messages.append(message)


def test_one_node_has_only_so_many_questions_open() -> None:
    relay, asker, source = Relay(), Heard(), Heard()
    for id in range(MOST_OPEN + 1):
        relay.ask(asker, question("1", request_id=id), source, "")
    assert len(source.messages) == MOST_OPEN
    assert [message.checkpoint_data.away for message in asker.messages] == [True]


def test_an_answer_of_another_node_than_was_asked_is_dropped() -> None:
    relay, asker, source = Relay(), Heard(), Heard()
    relay.ask(asker, question("1"), source, "")
    id = source.messages[0].read_checkpoint.request_id
    relay.answer(Heard(), agent_pb2.CheckpointData(request_id=id, data=b"wrong"))
    assert asker.messages == []
