"""Scripts that are part of a job, and Python environments that a node must have."""

import zlib

import pytest
from ebbtide_agent.supervisor.launching.script import interpreter
from ebbtide_protos.v1 import agent_pb2

from tests.agent.supervisor.node import EXITED, REFUSED


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\n", ("/bin/sh",)),
        ("#! /bin/bash -l  \n", ("/bin/bash", "-l")),
        ("#!/usr/bin/env -S python -u\n", ("/usr/bin/env", "-S python -u")),
        ("#!\n", ("/bin/bash",)),
        ("echo\n", ("/bin/bash",)),
        ("", ("/bin/bash",)),
    ],
)
def test_the_first_line_says_what_runs_a_script(script, words):
    assert interpreter(script) == words


async def test_a_script_runs_with_its_arguments_wherever_its_file_is_gone(agent):
    script = '#!/bin/sh\necho $0 $# "$2"\n'
    async with agent() as node:
        status = await node.run(["gone.sh", "a", "b c"], script=script)
        assert (status.phase, status.exit.exit_code) == (EXITED, 0)
        assert node.log() == f"{node.place().path}/script 2 b c\n"


async def test_a_script_whose_interpreter_is_not_there_is_refused(agent):
    async with agent() as node:
        status = await node.run(["train.sh"], script="#!/no/such/shell\n")
        assert status.phase == REFUSED
        assert "command '/no/such/shell': not found" in status.refusal


async def test_a_node_without_the_python_environment_refuses_and_one_with_it_starts(agent, disk):
    async with agent() as node:
        status = await node.run(["true"], python_env=str(disk / "venv"))
        assert (status.phase, status.refusal) == (REFUSED, f"no Python environment {disk}/venv on node node")
        assert status.refusal_cause == agent_pb2.REFUSAL_CAUSE_NO_PATH
        (disk / "venv/bin").mkdir(parents=True)
        (disk / "venv/bin/python").symlink_to("/bin/sh")
        status = await node.run(["true"], attempt=2, python_env=str(disk / "venv"))
        assert (status.phase, status.exit.exit_code) == (EXITED, 0)


async def test_a_script_that_was_edited_since_submit_is_named_at_its_start(agent, disk):
    (disk / "same.py").write_text("one\n")
    (disk / "other.py").write_text("two\n")
    same = zlib.crc32(b"one\n")
    digests = {"same.py": f"{same:08x}-4", "other.py": "00000000-4", "gone.py": "00000000-1"}
    async with agent() as node:
        status = await node.run(["true"], workdir=str(disk), scripts=digests)
        assert list(status.edited) == ["other.py"]
