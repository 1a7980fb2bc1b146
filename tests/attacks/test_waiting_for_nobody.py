"""An agent waits for nobody's files: others' jobs start and end, and logs are shown, while somebody's never answer."""

import asyncio
import os
from pathlib import Path

import pytest
from ebbtide_agent.attempts import launching
from ebbtide_agent.files import copying, exchange, reading, required
from ebbtide_agent.files.copying import Copy, NotCopied
from ebbtide_agent.files.exchange import Exchange, read_as_owner
from ebbtide_agent.gpu.backend import Gpu, GpuSettings
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.files.test_snapshots import DIGEST, TREE, Master
from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import EXITED, GIB, LAUNCHING, REFUSED, gpus, order, python
from tests.attacks.hung import hung

LEASE = """
import fcntl, os, time
print("up", flush=True)
name = os.readlink("/proc/self/fd/1")
again = os.open("/proc/self/fd/1", os.O_WRONLY)
null = os.open("/dev/null", os.O_RDWR)
for descriptor in (1, 2):
    os.dup2(null, descriptor)
while True:
    try:
        fcntl.fcntl(again, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except BlockingIOError:
        time.sleep(0.01)
open("leased", "w").close()
time.sleep(600)
"""


async def test_a_lease_on_ones_own_log_holds_up_nobody(agent: MakeNode, tmp_path: Path) -> None:
    async with agent() as node:
        await node.launch(python(LEASE), workdir=str(tmp_path))
        await node.until((tmp_path / "leased").exists)
        async with asyncio.timeout(20.0):  # the kernel would have us wait for 45 s
            window = await node.attempts.access.read_log("1", 1, 0, 100, 0.0)
        assert (window.data, window.error) == (b"", "")


@pytest.mark.root
@pytest.mark.fuse
async def test_others_jobs_start_while_a_directory_that_was_submitted_from_does_not_answer(
    agent: MakeNode, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "ANSWER_S", 0.3)
    silent = disk / "silent"
    silent.mkdir()
    async with agent() as node:
        Master().attach(node.exchange)
        with hung(silent):
            launch = order(["cat", "data/set"], workdir=str(silent / "x"), output="out")
            launch.spec.snapshot.CopyFrom(job_pb2.Snapshot(digest=DIGEST, bytes=len(TREE)))
            await node.attempts.launch(launch)
            status = await node.run(python("pass"), job_id="2")
            assert (status.phase, status.exit.exit_code) == (EXITED, 0)
            assert (await node.end("1")).phase == EXITED
            assert (node.dir / "workdirs" / "1" / "out").read_text() == node.log() == "1 2 3\n"


@pytest.mark.root
@pytest.mark.fuse
async def test_others_jobs_start_while_somebodys_python_does_not_answer(
    agent: MakeNode, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide_agent.mps.sharing._LOOK_AT_TORCH_S", 0.3)
    silent = disk / "silent"
    silent.mkdir()
    async with agent() as node:
        sharing = node.attempts._sharing
        await sharing.set_gpus((Gpu("GPU-0", 0, "x", 24 * GIB),), lambda uuid: GpuSettings(), fake=False)
        with hung(silent):
            env = {"PATH": f"{silent}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(silent)}
            share = gpus(1, share=(1, 2))
            starting = asyncio.create_task(node.launch(["/bin/true"], gpus=share, env=env))
            await node.until(lambda: any(status.phase == LAUNCHING for status in node.attempts.statuses()))
            assert (await node.run(python("pass"), job_id="2")).phase == EXITED
            await starting
            assert (await node.end("1")).phase == EXITED


@pytest.mark.root
@pytest.mark.fuse
async def test_a_path_that_is_required_and_does_not_answer_is_missing(
    agent: MakeNode, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(required, "ANSWER_S", 0.3)
    silent = disk / "silent"
    silent.mkdir()
    async with agent() as node:
        with hung(silent):
            launch = order(["true"])
            launch.spec.needs.require_paths.append(str(silent / "x"))
            await node.attempts.launch(launch)
            refused = node.changes[-1]
            assert (refused.phase, refused.refusal_cause) == (REFUSED, agent_pb2.REFUSAL_CAUSE_NO_PATH)
            assert "does not answer" in refused.refusal


def test_a_pipe_in_the_place_of_a_checkpoints_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    os.mkfifo(tmp_path / "attempt-1" / "weights")
    answer = reading.read(str(tmp_path), 2, "attempt-1", "weights", 0, 100)
    assert answer == {"error": "there is no file 'weights' in 'attempt-1'"}


@pytest.mark.root
@pytest.mark.fuse
async def test_a_checkpoint_that_does_not_answer_is_neither_shown_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_OWNER_S", 0.3)
    with hung(tmp_path):
        request = agent_pb2.ReadCheckpoint(checkpoint="attempt-1", file="weights", max_bytes=100)
        assert "no answer in time" in (await read_as_owner(tmp_path / "1", request)).error


@pytest.mark.root
@pytest.mark.fuse
async def test_a_copy_to_where_nothing_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "READ_S", 0.3)
    master = Exchange()
    name = agent_pb2.CheckpointData(checkpoint="attempt-1")

    def answer(request: agent_pb2.ReadCheckpoint) -> None:
        name.request_id = request.request_id
        asyncio.get_running_loop().call_soon(master.answer, name)

    master.attach(answer)
    with hung(tmp_path), pytest.raises(NotCopied, match="does not answer"):
        await Copy(master, tmp_path / "1", "1", 2).bring()
