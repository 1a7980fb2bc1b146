"""What is hard to end: a process that sleeps in the kernel, and very many of them."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_machine.process import Identity

from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import EXITED, REFUSED, RUNNING, python

CHILDREN = 1000
FORKS = f"""
import os, time
for number in range({CHILDREN}):
    if os.fork() == 0:
        time.sleep(60); os._exit(0)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own on which whoever writes sleeps in the kernel until it is thawed."""
    image, mount = tmp_path / "image", tmp_path / "frozen"
    image.write_bytes(bytes(16 << 20))
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    subprocess.run(["fsfreeze", "-f", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["fsfreeze", "-u", mount], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "-l", mount], check=True)


def sleeps_in_kernel(process: Identity) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"


@pytest.mark.mounts
async def test_an_attempt_with_a_process_that_no_kill_ends_is_not_over(agent: MakeNode, frozen: Path) -> None:
    async with agent() as node:
        await node.launch(python("import sys; print('up', flush=True); open(sys.argv[1], 'w')", str(frozen / "file")))
        [job] = (await node.running(line="up")) and [Identity.of(node.status().pid)]
        await node.until(lambda: sleeps_in_kernel(job))
        await node.attempts.stop("1", 1, 0.0)
        await node.launch(python("print('second copy')"), attempt=2)
        assert (await node.end(attempt=2)).phase == REFUSED
        assert "node still runs attempt 1" in node.status(attempt=2).refusal
        assert (job.is_alive(), node.status().phase) == (True, RUNNING)
        subprocess.run(["fsfreeze", "-u", frozen], check=True)
        assert (await node.end()).phase == EXITED
        assert not job.is_alive()


@pytest.mark.slow
async def test_a_job_that_forks_a_thousand_children_is_ended_whole_while_the_agent_answers(agent: MakeNode) -> None:
    async with agent() as node:
        await node.launch(python(FORKS))
        await node.running(line="up")
        mine = [stat for pid in node.attempts.holders.pids_of("1", 1) if (stat := procfs.read_stat(pid)) is not None]
        assert len([stat for stat in mine if stat.command != HELPER]) == CHILDREN + 1
        stopping = asyncio.create_task(node.stop(grace_s=0.0))
        other = await node.run(["true"], job_id="2")
        assert (other.phase, other.exit.exit_code) == (EXITED, 0)
        assert (await stopping).phase == EXITED
        assert node.jobs() == []
