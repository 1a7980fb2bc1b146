"""Where channels and working directories could lead that are not the job's."""

import socket
import subprocess
from pathlib import Path

import pytest
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.channels import tree
from ebbtide_protos.v1 import agent_pb2

from tests.agent.channels.end import End
from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import REFUSED, gpus, order, python

root = pytest.mark.root
SLEEP = python("print('up', flush=True); import time; time.sleep(600)")
SERVE = """
import socket, sys
served = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
while True:
    accepted, _ = served.accept()
    accepted.sendall(b"the job")
    accepted.close()
"""


async def test_a_tunnel_leads_to_the_address_on_which_the_job_listens_whoever_has_the_port_elsewhere(
    agent: MakeNode,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with agent() as node:
            await node.launch(python(SERVE, "127.0.0.2", str(port)))
            await node.running(line="up")
            end = End(node)
            channel = end.open(port=port)
            end.give(channel, end=True)
            assert not (await end.end(channel)).error
            assert end.out(channel) == b"the job"


async def test_a_tunnel_leads_to_nobody_elses_port(agent: MakeNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with agent() as node:
            await node.launch(SLEEP)
            await node.running(line="up")
            end = End(node)
            assert (await end.end(end.open(port=port))).error == f"port {port}: no process of the job listens on it"


@root
async def test_who_reads_files_for_a_user_has_nothing_of_the_agents_environment(
    somebody: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_ROOT", "s3cret")
    reader = tree._reader(somebody)
    try:
        assert reader.stdin is not None
        assert b"s3cret" not in Path(f"/proc/{reader.pid}/environ").read_bytes()
    finally:
        tree._give_up(reader)


@root
@pytest.mark.parametrize("way", ["/proc/self/cwd", "/proc/thread-self/cwd", "/proc/self/root/proc/self/cwd"])
@pytest.mark.parametrize("linked", [False, True])
async def test_no_job_begins_where_a_link_of_proc_leads(
    agent: MakeNode, disk: Path, somebody: Account, way: str, linked: bool
) -> None:
    own = disk / "own"
    own.mkdir()
    (own / "link").symlink_to(way)
    async with agent() as node:
        launch = order(python("import os; print(os.getcwd())"), workdir=str(own / "link") if linked else way)
        launch.account = "nobody"
        await node.attempts.launch(launch)
        status = await node.end()
        assert (status.phase, status.refusal_cause) == (REFUSED, agent_pb2.REFUSAL_CAUSE_BAD_JOB), node.log()
        assert "leads through links of /proc" in status.refusal


@root
async def test_what_srun_locks_can_be_opened_by_the_account_and_by_no_other(agent: MakeNode, somebody: Account) -> None:
    async with agent(fake_gpus=True) as node:
        launch = order(SLEEP, gpus=gpus(2), slurm=True)
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.running(line="up")
        locks = [node.place().socket_dir / f"gpu-{index}.lock" for index in range(2)]
        assert [may_read(lock, somebody.uid) for lock in locks] == [True, True]
        assert [may_read(lock, somebody.uid - 1) for lock in locks] == [False, False]


def may_read(path: Path, uid: int) -> bool:
    """Whether an account with this uid may open the file, and so lock it."""
    read = subprocess.run(["cat", path], user=uid, group=uid, extra_groups=[], stderr=subprocess.DEVNULL)
    return read.returncode == 0
