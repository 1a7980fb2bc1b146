"""Processes that pose as others' attempts: by their environment, by what they have open, by where they have it open."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.attempts import survivors
from ebbtide_agent.contract.attempt_dir import AttemptDir, attempts_dir, lock_path, socket_dirs
from ebbtide_agent.processes import process_scan
from ebbtide_agent.processes.process_scan import look_into
from ebbtide_core.events import StrayFound
from ebbtide_core.model.types import AttemptRef, NodeId
from ebbtide_core.nodes.strays import AttemptReport, after_report
from ebbtide_machine.process import Identity

from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import RUNNING, order, python
from tests.core.lab import Lab, registration

root = pytest.mark.root
SLEEP = python("print('up', flush=True); import time; time.sleep(600)")
UP = [sys.executable, "-S", "-c", "print('up', flush=True); import time; time.sleep(600)"]


@contextmanager
def running(command: Sequence[str | bytes], account: Account | None, **environment: str | bytes) -> Iterator[int]:
    """The command as that account, once it has said a line; its pid."""
    who = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
    with subprocess.Popen(
        command, env={"PATH": os.environ["PATH"], **environment}, cwd="/", stdout=subprocess.PIPE, **who
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def node_dir(disk: Path) -> Path:
    """A node's directory, where nothing was launched."""
    path = disk / "node"
    for folder in (attempts_dir(path), lock_path(path, "").parent):
        folder.mkdir(mode=0o700, parents=True)
    return path


def socket_of(folder: Path, account: Account) -> Path:
    """One that is the account's, there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
    os.chown(path, account.uid, account.gid)
    return path


NAMES = [b"1.2", b"\xff.1", b"1.99999999999", b"1.0", b"1.02", b"1", b"../1.2", b"a/../1.2", b"1.2/../1.3", b""]


@root
async def test_processes_that_name_attempts_as_their_own_are_none_and_the_agent_starts(
    agent: MakeNode, disk: Path, somebody: Account
) -> None:
    with ExitStack() as posing:
        for folder in (attempts_dir(disk / "node"), socket_dirs(disk / "node")):
            for name in NAMES:
                path = os.fsencode(folder) + b"/" + name + b"/job.sock"
                posing.enter_context(running(UP, somebody, EBB_SOCKET=path))
        async with agent() as node:
            assert node.attempts.statuses() == []


@root
async def test_a_socket_outside_that_is_reached_through_the_nodes_own_directory_proves_nothing(
    agent: MakeNode, disk: Path, somebody: Account
) -> None:
    folder = attempts_dir(disk / "node")
    own = [socket_of(disk / "own" / os.fsdecode(name), somebody) for name in (b"1.2", b"\xff.1")]
    outside = [folder / os.path.relpath(path, folder) for path in own]
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        with ExitStack() as posing:
            assert all(os.path.samefile(*paths) for paths in zip(outside, own, strict=True))
            pids = [posing.enter_context(running(UP, somebody, EBB_SOCKET=os.fsencode(path))) for path in outside]
            assert survivors.attempts_of(node.dir.resolve(), frozenset(pids)) == {}
            async with agent(leave=True) as again:
                assert [(status.attempt, status.phase) for status in again.attempts.statuses()] == [(1, RUNNING)]


@root
async def test_whose_attempt_it_is_says_its_intent_and_not_who_names_it(agent: MakeNode, somebody: Account) -> None:
    async with agent() as node:
        await node.launch(SLEEP)  # root's own
        await node.running(line="up")
        with running(UP, somebody, EBB_SOCKET=str(node.place().path / "job.sock")) as pid:
            assert survivors.attempts_of(node.dir.resolve(), frozenset({pid})) == {}
            assert Identity.of(pid) not in survivors.of_attempt(node.dir.resolve(), ("1", 1))


@root
@pytest.mark.namespaces
def test_a_lock_that_has_its_place_in_a_mount_namespace_only_proves_nothing(node_dir: Path, somebody: Account) -> None:
    lock = lock_path(node_dir.resolve(), "1")
    script = f"mount -t tmpfs none /tmp && mkdir -p {lock.parent} && printf '000000000002\\n1\\n' > {lock} && "
    script += f"exec 9<{lock} && rm {lock} && echo up && exec sleep 600"
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    with running(namespace, somebody) as pid:
        assert os.readlink(f"/proc/{pid}/fd/9") == f"{lock} (deleted)"
        assert survivors.by_any_sign(node_dir.resolve()) == {}
        assert survivors.of_attempt(node_dir.resolve(), ("1", 2)) == []


@root
def test_of_an_accounts_orphan_the_gpus_are_those_that_it_was_given(node_dir: Path, somebody: Account) -> None:
    place = AttemptDir.of(node_dir.resolve(), "5", 1)
    place.make_socket_dir()
    at = socket_of(place.socket_dir, somebody)
    with running(UP, somebody, EBB_SOCKET=str(at), CUDA_VISIBLE_DEVICES="GPU-0,GPU-1") as pid:
        process = Identity.of(pid)
        assert survivors.by_any_sign(place.path.parents[1]) == {("5", 1): [process]}
        assert survivors.gpus_of(place, [process]) == []
        (place.socket_dir / "gpus").write_text('{"gpus": [{"uuid": "GPU-1"}]}')
        assert survivors.gpus_of(place, [process]) == ["GPU-1"]


@root
async def test_an_accounts_job_is_found_again_when_the_nodes_directory_is_lost(
    agent: MakeNode, disk: Path, somebody: Account
) -> None:
    async with agent(leave=True) as node:
        launch = order(SLEEP)
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.running(line="up")
    shutil.rmtree(node.dir)
    async with agent() as node:
        [status] = node.attempts.statuses()
        assert (status.job_id, status.attempt, status.orphan) == ("1", 1, True)


@root
def test_who_never_lets_go_of_who_looks_hides_nothing_of_others(
    somebody: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_scan, "LONGEST_S", 0.5)
    never = threading.Event()
    with running(UP, somebody) as trap, running(UP, None) as other:
        processes = [process for pid in (trap, other) if (process := Identity.of(pid)) is not None]

        def look(pid: int) -> bool:
            return pid != trap or never.wait(60.0)

        try:
            for _ in range(2):
                assert [process.pid for process in look_into(processes, look)] == [other]
        finally:
            never.set()


def test_an_orphan_ends_no_older_attempt_of_its_own_node() -> None:
    lab = Lab(nodes="ab")
    job = lab.running()
    [node] = job.attempts[0].allocation.node_ids
    lab.tell(registration(node, known=(AttemptRef(job.id, 1),)))
    heard = AttemptReport(node=NodeId(node), job=job.id, attempt=2, orphan=True)
    told = list(after_report(lab.cluster.state, heard))
    assert [type(event) for event in told] == [StrayFound]
