"""Agents learn which jobs have finished, and of no others."""

from pathlib import Path

from ebbtide_protos.v1 import agent_pb2

from tests.master.world import EXITED, FREED, a_master


async def test_a_node_is_told_which_jobs_have_finished(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        over, goes_on = await master.running(agent), await master.running(agent)
        for phase in (EXITED, FREED):
            await agent.report(over, 1, phase)
        await master.becomes(over, "COMPLETED")
        await agent.send(read_checkpoint=agent_pb2.ReadCheckpoint(request_id=7, ended_of=[over, goes_on, "999", ""]))
        answer = await agent.receive("checkpoint_data")
        assert answer.request_id == 7
        assert list(answer.ended_ago_s) == [over]
        assert 0.0 <= answer.ended_ago_s[over] < 60.0
