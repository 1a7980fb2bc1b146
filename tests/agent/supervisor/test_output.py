"""Where what a job prints goes to, beside the node's own log."""

import os
import signal
import sys

import pytest
from ebbtide_agent.supervisor.streams.output_file import OutputFile
from ebbtide_agent.supervisor.streams.ranks_output import RanksOutput
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.node import gpus, order, python

DDP = {"launch": job_pb2.LAUNCH_MODE_DDP}
HELLO = "import os; print('hello from ' + os.environ['RANK'], flush=True)"


async def read(node, rank=None, attempt=1):
    window = await node.attempts.access.read_log("1", attempt, 0, 10_000, 0.0, rank)
    return window.data.decode()


async def test_each_rank_has_a_log_and_one_log_has_all(agent):
    async with agent() as node:
        await node.run(python(HELLO), gpus=gpus(3), **DDP)
        assert [await read(node, rank) for rank in range(3)] == [f"hello from {rank}\n" for rank in range(3)]
        assert sorted((await read(node)).splitlines()) == [f"hello from {rank}" for rank in range(3)]


async def test_the_ranks_logs_outlive_the_rest_of_the_attempt(agent):
    async with agent() as node:
        await node.run(python(HELLO), gpus=gpus(2), **DDP)
        await node.attempts.forget("1", 1)
        assert await read(node, 1) == "hello from 1\n"
        assert {path.name for path in node.place().path.iterdir()} == {
            "forgotten", "output.log", "rank-0.log", "rank-1.log"
        }  # fmt: skip


async def test_lines_begin_with_their_rank_if_that_was_asked_for(agent):
    async with agent() as node:
        await node.run(python(HELLO), gpus=gpus(2), prefix_ranks=True, **DDP)
        assert sorted((await read(node)).splitlines()) == ["[0] hello from 0", "[1] hello from 1"]
        assert await read(node, 1) == "hello from 1\n"


async def test_ranks_of_later_nodes_count_on(agent):
    async with agent() as node:
        launch = order(python(HELLO), gpus=gpus(2), **DDP)
        launch.num_nodes, launch.node_rank, launch.first_rank, launch.world_size = 2, 1, 3, 5
        launch.master_addr, launch.master_port = "127.0.0.1", 1
        await node.attempts.launch(launch)
        await node.end()
        assert await read(node, 4) == "hello from 4\n"


async def test_a_job_of_one_process_has_one_log_whatever_its_rank(agent):
    async with agent() as node:
        await node.run(["echo", "alone"])
        assert await read(node, 0) == await read(node) == "alone\n"


async def test_what_ranks_print_is_in_the_log_even_if_their_supervisor_is_killed(agent, tmp_path):
    code = "import os, time; print('up ' + os.environ['RANK'], flush=True); time.sleep(60)"
    async with agent() as node:
        await node.launch(python(code), gpus=gpus(2), **DDP)
        await node.until(lambda: all("up" in _text(node.place().rank_output(rank)) for rank in range(2)))
        node.supervisor().signal(9)
        await node.end()
        assert sorted((await read(node)).splitlines()) == ["up 0", "up 1"]


def _text(path):
    return path.read_text() if path.exists() else ""


@pytest.fixture
def ranks(tmp_path):
    class Ranks:
        log = tmp_path / "output.log"
        paths = (tmp_path / "rank-0.log", tmp_path / "rank-1.log")

        def open(self, prefix=False):
            named = [(f"[{rank}] " if prefix else "", path) for rank, path in enumerate(self.paths)]
            return RanksOutput(named, self.log, tmp_path / "ranks")

        def says(self, rank, text):
            with self.paths[rank].open("a") as file:
                file.write(text)

    return Ranks()


def test_lines_of_ranks_are_not_torn(ranks):
    output = ranks.open()
    ranks.says(0, "loss ")
    ranks.says(1, "ready\n")
    output.look()
    ranks.says(0, "0.5\n")
    output.look()
    assert ranks.log.read_text() == "ready\nloss 0.5\n"


def test_a_line_without_an_end_comes_once_nobody_goes_on_with_it(ranks):
    output = ranks.open()
    ranks.says(0, "Continue? ")
    output.look()
    output.look()
    assert ranks.log.read_text() == "Continue? "


def test_whoever_goes_on_with_it_repeats_nothing(ranks):
    first = ranks.open(prefix=True)
    ranks.says(0, "one\n")
    ranks.says(1, "bar\rbar\r")
    first.look()
    os.write(first._log, b"torn by a crash")
    ranks.says(0, "two")
    second = ranks.open(prefix=True)
    second.look(final=True)
    assert ranks.log.read_bytes() == b"[0] one\n[1] bar\r[1] bar\r[0] two"


async def test_output_is_appended_to_the_file_that_the_user_named(agent, tmp_path):
    spec = {"workdir": str(tmp_path), "output": "logs/train.out"}
    async with agent() as node:
        await node.run(["echo", "first"], **spec)
        await node.run(["echo", "second"], attempt=2, **spec)
        assert (tmp_path / "logs" / "train.out").read_text() == "first\n--- job 1, attempt 2 ---\nsecond\n"
        assert await read(node, attempt=2) == "second\n"


async def test_the_file_grows_while_the_job_runs(agent, tmp_path):
    async with agent() as node:
        code = "import time; print('up', flush=True); time.sleep(60)"
        await node.launch(python(code), workdir=str(tmp_path), output="1.out")
        await node.until(lambda: _text(tmp_path / "1.out") == "up\n")


def test_the_file_is_whole_though_what_writes_it_was_stopped_with_the_job(tmp_path):
    log = tmp_path / "output.log"
    log.write_text("x" * 3_000_000)  # more than the pipe takes
    copy = OutputFile(log, tmp_path / "1.out")
    copy.patience_s = 10.0
    os.kill(copy._helper_task.pid, signal.SIGSTOP)
    copy.look(final=True)
    os.kill(copy._helper_task.pid, signal.SIGSTOP)
    copy.close()
    assert _text(tmp_path / "1.out") == log.read_text()


async def test_a_job_whose_file_cannot_be_written_is_not_started_and_says_why(agent, tmp_path):
    (tmp_path / "logs").write_text("a file")
    async with agent() as node:
        status = await node.run(["true"], workdir=str(tmp_path), output="logs/1.out")
        assert status.refusal.startswith("--output: cannot write ")
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_BAD_JOB


async def test_stdin_is_at_its_end(agent):
    async with agent() as node:
        await node.run([sys.executable, "-S", "-c", "print(repr(input.__self__.open(0).read()))"])
        assert await read(node) == "''\n"
