"""Root reaches into jobs of other accounts with their rights, and no further."""

import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ebbtide_agent.accounts import accounts
from ebbtide_agent.accounts.accounts import Account, AllowedAccounts, NoAccount
from ebbtide_agent.accounts.rights import rights_of, with_rights
from ebbtide_agent.files.exchange import read_as_owner
from ebbtide_agent.files.snapshots import _copy_tree
from ebbtide_protos.v1 import agent_pb2, channel_pb2, job_pb2

from tests.agent.accounts.conftest import SECRET
from tests.agent.channels.end import End
from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import Node, order

WAIT = ["/bin/sh", "-c", "echo up; sleep 60"]


async def launched(node: Node, command: list[str], **spec: object) -> None:
    launch = order(command, **spec)
    launch.account = "nobody"
    await node.attempts.launch(launch)


@pytest.mark.root
async def test_a_command_inside_a_job_and_its_terminal_are_the_accounts(agent: MakeNode, own: Path) -> None:
    async with agent() as node:
        await launched(node, WAIT, workdir=str(own))
        await node.running(line="up\n")
        end = End(node)
        plain, terminal = end.run("sh", "-c", "id -un; pwd"), end.run("sh", "-c", "stat -c %U $(tty)", terminal=True)
        assert ((await end.end(plain)).exit_code, end.out(plain)) == (0, f"nobody\n{own}\n".encode())
        assert ((await end.end(terminal)).exit_code, end.out(terminal)) == (0, b"nobody\r\n")


@pytest.mark.root
async def test_a_shell_is_attached_to_behind_the_door(agent: MakeNode) -> None:
    async with agent() as node:
        await launched(node, ["/bin/sh"], kind=job_pb2.JOB_KIND_SHELL)
        await node.running()
        end = End(node)
        shell = end.open(session=channel_pb2.AttachSession())
        end.give(shell, data=b"id -un; exit 3\n")
        assert (await end.end(shell)).exit_code == 3
        assert b"nobody\r\n" in end.out(shell)


@pytest.mark.root
async def test_files_are_copied_out_with_the_rights_of_the_account(agent: MakeNode, own: Path, secret: Path) -> None:
    (own / "result").write_text("4711")
    (own / "key").symlink_to(secret / "key")
    os.chmod(secret, 0o711)  # so that only the file's own rights are in the way
    async with agent() as node:
        await launched(node, ["true"], workdir=str(own))
        await node.end()
        for _ in ("known", "forgotten"):
            end = End(node)
            good, bad = (
                end.open(tree=channel_pb2.ReadTree(paths=[path], workdir=str(own), one_file=True))
                for path in ("result", "../secret/key")
            )
            linked = end.open(tree=channel_pb2.ReadTree(paths=["key"], workdir="/", one_file=True))
            await end.end(good)
            assert (end.out(good), (await end.end(bad)).error != "") == (b"4711", True)
            assert SECRET not in str(await end.end(linked)) + str(end.out(linked))
            await node.attempts.forget("1", 1)
        through = end.open(tree=channel_pb2.ReadTree(paths=["key"], workdir=str(secret), one_file=True))
        assert "Permission denied" in (await end.end(through)).error


@pytest.mark.root
async def test_a_checkpoint_is_read_for_another_node_with_the_rights_of_its_owner(
    own: Path, secret: Path, somebody: Account
) -> None:
    folder = own / "attempt-1"
    folder.mkdir()
    (folder / "weights").write_text("w")
    os.link(secret / "key", folder / "key")  # what a race would put in the place of the file that was looked at
    for path, readable in (("weights", True), ("key", False)):
        request = agent_pb2.ReadCheckpoint(checkpoint="attempt-1", file=path, max_bytes=100)
        if readable:
            assert (await read_as_owner(own, request)).data == b"w"
        else:
            with pytest.raises(PermissionError):
                await read_as_owner(own, request)


@pytest.mark.root
def test_the_copy_of_a_snapshot_is_the_accounts_down_to_the_last_link(disk: Path, somebody: Account) -> None:
    tree, place = disk / "tree", disk / "c1" / ".workdirs-n" / "1"
    (tree / "deep").mkdir(parents=True, mode=0o755)
    (tree / "deep" / "train.py").write_text("x")
    (tree / "out").symlink_to("/etc/passwd")
    before = os.stat("/etc/passwd").st_uid
    _copy_tree(tree, place, somebody)
    owners = {path.lstat().st_uid for path in (place, *place.rglob("*"))}
    assert (owners, os.stat("/etc/passwd").st_uid) == ({somebody.uid}, before)
    assert with_rights(somebody, (place / "deep" / "train.py").read_text) == "x"


@pytest.mark.root
def test_rights_are_those_of_one_thread_and_come_back(secret: Path, somebody: Account) -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(os.getpid).result()  # a thread that begins later begins with what this one has then
        with rights_of(somebody):
            with pytest.raises(PermissionError):
                (secret / "key").read_text()
            assert other.submit((secret / "key").read_text).result() == SECRET
            assert (os.geteuid(), os.getresuid()) == (somebody.uid, (0, somebody.uid, 0))
    assert (os.geteuid(), (secret / "key").read_text()) == (0, SECRET)


def test_an_agent_of_an_ordinary_account_starts_jobs_of_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid)
    assert accounts.find("nobody", None) is None
    assert accounts.find("", None) is None
    with pytest.raises(NoAccount, match="the agent here runs as nobody and starts no jobs of daemon"):
        accounts.find("daemon", None)


def test_a_shared_account_runs_the_jobs_of_all_unless_it_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = AllowedAccounts(shared=True)
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("nobody").pw_uid)
    assert accounts.find("daemon", None, shared) is None
    assert accounts.find("no-such-account", 4711, shared) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NoAccount, match="below 1000 no jobs run here"):
        accounts.find("daemon", None, shared)
