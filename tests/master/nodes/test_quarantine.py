"""When a GPU that a job left memory on is given out again."""

from pathlib import Path

from ebbtide_master.nodes.quarantine import TOLERANCE_BYTES, is_released
from ebbtide_protos.v1 import agent_pb2

from tests.master.world import EXITED, GIB, a_master


def process(mem_bytes: int | None, job: str = "", attempt: int = 0) -> agent_pb2.GpuProcess:
    user = "" if job else "ann"
    return agent_pb2.GpuProcess(pid=7, mem_bytes=mem_bytes, job_id=job, attempt=attempt, user=user)


def reading(used: int | None, *processes: agent_pb2.GpuProcess, **more: object) -> agent_pb2.GpuReading:
    return agent_pb2.GpuReading(uuid="n1-0", mem_used_bytes=used, processes=processes, **({"healthy": True} | more))  # type: ignore[arg-type]


CASES = [
    (reading(TOLERANCE_BYTES), True),
    (reading(TOLERANCE_BYTES + 1), False),
    (reading(GIB + TOLERANCE_BYTES, idle_bytes=GIB), True),
    (reading(GIB + TOLERANCE_BYTES + 1, idle_bytes=GIB), False),
    (reading(0, healthy=False), False),
    (reading(8 * GIB, process(8 * GIB)), True),  # somebody else's, who explains all of it
    (reading(8 * GIB, process(4 * GIB)), False),
    (reading(8 * GIB, process(None)), True),
    (reading(8 * GIB, agent_pb2.GpuProcess(pid=7, mem_bytes=8 * GIB)), False),  # it has ended, but is still listed
    (reading(8 * GIB, process(8 * GIB, "1", 2)), True),  # of the attempt that runs there
    (reading(8 * GIB, process(8 * GIB, "1", 1)), False),  # of the attempt that is over
    (reading(8 * GIB, process(8 * GIB, "99", 1)), False),  # of nobody who is known
    (reading(None), True),
    (reading(None, processes_unknown=True), False),
]


async def test_a_gpu_is_released_when_what_is_used_is_explained_by_those_who_may_be_there(
    tmp_path: Path,
) -> None:
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", 2)
        job = await master.running(agent)
        again = agent_pb2.ExitRecord(exit_code=75, ended_at=1001.0)
        await agent.report(job, 1, EXITED, exit=again)
        await agent.report(job, 1, agent_pb2.ATTEMPT_PHASE_FREED, exit=again)
        assert (await agent.receive("launch")).attempt == 2
        assert [is_released(seen, master.cluster) for seen, _ in CASES] == [released for _, released in CASES]
