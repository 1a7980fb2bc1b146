"""What is hard to end: a process that sleeps in the kernel, very many of them, and any on a machine without threads."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ebbtide_agent.attempts import backstop, supervised
from ebbtide_agent.helper.confining import HELPER
from ebbtide_agent.processes import procfs
from ebbtide_machine.process import Identity

from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import EXITED, REFUSED, RUNNING, python

CHILDREN = 1000
SLEEP = python("print('up', flush=True); import time; time.sleep(600)")
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


def fail_once(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """Let the module's next thread not be started; holds the error once that is so."""
    raised, start = list[str](), module.on_daemon_thread

    def start_later(*arguments: object) -> object:
        if raised:
            return start(*arguments)
        raised.append("can't start new thread")
        raise RuntimeError(*raised)

    monkeypatch.setattr(module, "on_daemon_thread", start_later)
    return raised


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


async def test_an_attempt_without_supervisor_is_over_though_once_no_thread_could_be_started_to_find_that_out(
    agent: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        raised = fail_once(monkeypatch, supervised)
        node.supervisor().signal(signal.SIGKILL)
        assert (await node.end()).lost
        assert raised


async def test_an_attempt_whose_supervisor_hangs_is_ended_though_once_no_thread_could_be_started_for_that(
    agent: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backstop, "KILL_S", 0.3)
    monkeypatch.setattr(backstop, "END_S", 0.6)
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        raised = fail_once(monkeypatch, backstop)
        node.supervisor().signal(signal.SIGSTOP)
        assert (await node.stop(0.2)).lost
        assert raised
