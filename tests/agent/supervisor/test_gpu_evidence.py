"""What is known of an attempt's processes and memory on GPUs, and of GPUs that failed under it."""

import os
import signal

import pytest
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.processes import procfs
from ebbtide_protos.v1 import agent_pb2

from tests.agent.supervisor.node import EXITED, FREED, gpus, python

# A child in a session of its own whose parent has ended: it hangs below nobody who knows it.
ESCAPE = """
import os, time
if (child := os.fork()) == 0:
    os.setsid()
    if (escaped := os.fork()) > 0:
        print(escaped, flush=True)
        os._exit(0)
    time.sleep(1000)
os.waitpid(child, 0)
print("gone", flush=True)
time.sleep(1000)
"""


async def test_a_process_that_no_tree_leads_to_is_the_attempts_by_its_environment(agent):
    async with agent() as node:
        await node.launch(python(ESCAPE))
        await node.running()
        await node.until(lambda: node.log().endswith("gone\n"))
        pid = int(node.log().split()[0])
        attribution = Attribution(dict, environments=node.attempts.holders.by_environment)  # no tree leads to it
        assert await attribution.owners(frozenset({pid, os.getpid()})) == {pid: ("1", 1)}
        assert [process.pid for process in attribution.living(("1", 1), frozenset({pid}))] == [pid]


async def test_the_supervisors_tree_leads_to_a_process_in_a_session_of_its_own(agent):
    async with agent() as node:
        await node.launch(python(ESCAPE))
        await node.running()
        await node.until(lambda: node.log().endswith("gone\n"))
        pid = int(node.log().split()[0])
        assert procfs.read_stat(pid).parent == node.supervisor().pid
        assert await Attribution(node.attempts.holders.pids).owners(frozenset({pid})) == {pid: ("1", 1)}


@pytest.mark.parametrize(
    ("code", "lost"),
    [("raise SystemExit(1)", "GPU-0"), ("raise SystemExit(0)", ""), ("import os; os.kill(os.getpid(), 9)", "GPU-0")],
)
async def test_a_job_that_failed_is_reported_with_the_gpu_that_was_gone_then(agent, code, lost):
    async with agent() as node:
        node.gpus.lost = lambda uuids: uuids[0]
        assert (await node.run(python(code), gpus=gpus(1))).exit.lost_gpu == lost
        await node.until(lambda: EXITED in node.phases())
        ends = [status for status in node.changes if status.phase == EXITED]
        assert {status.exit.lost_gpu for status in ends} == {lost}  # it was never told otherwise


async def test_who_was_asked_to_stop_is_not_asked_about_gpus(agent):
    async with agent() as node:
        asked = []
        node.gpus.lost = asked.append
        await node.launch(python("import time; time.sleep(1000)"), gpus=gpus(1))
        await node.running()
        assert (await node.stop()).exit.signal == signal.SIGTERM
        assert asked == []


async def test_a_question_that_fails_does_not_hide_the_end(agent):
    async with agent() as node:

        def no_answer(uuids):
            raise RuntimeError("no answer")

        node.gpus.lost = no_answer
        assert (await node.run(python("raise SystemExit(3)"), gpus=gpus(1))).exit.exit_code == 3


async def test_memory_that_was_seen_is_told_at_once_if_it_is_news_and_in_any_case_at_the_end(agent):
    async with agent() as node:
        await node.launch(python("import time; time.sleep(1000)"), gpus=gpus(1))
        await node.running()
        over = agent_pb2.AttemptStatus(
            job_id="1", attempt=1, overran_gpu="GPU-0", overran_bytes=9, allowed_bytes=6, gpu_mem_peak_bytes=9
        )
        node.attempts.holders.note_memory(over, tell=True)
        await node.until(lambda: node.changes[-1].overran_gpu == "GPU-0")
        within = agent_pb2.AttemptStatus(job_id="1", attempt=1, gpu_mem_peak_bytes=10)
        node.attempts.holders.note_memory(within, tell=True)
        await node.until(lambda: node.changes[-1].overran_gpu == "")
        assert node.changes[-1].gpu_mem_peak_bytes == 10
        node.attempts.holders.note_memory(
            agent_pb2.AttemptStatus(job_id="1", attempt=1, gpu_mem_peak_bytes=11), tell=False
        )
        assert (await node.stop()).gpu_mem_peak_bytes == 11
        await node.prove_free(dirty={"GPU-0": "stuck"})
        await node.until(lambda: node.changes[-1].phase == FREED)
        assert (node.changes[-1].gpu_mem_peak_bytes, list(node.changes[-1].dirty_reasons)) == (11, ["stuck"])
