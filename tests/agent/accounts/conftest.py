"""A node whose agent runs as root, on a disk that other accounts may enter but not list."""

import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide import trees
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.attempt_dir import socket_dirs

from tests.agent.supervisor.conftest import agent
from tests.agent.supervisor.node import Node

__all__ = ["agent"]

SECRET = "of root alone"


@pytest.fixture
def somebody() -> Account:
    """An account that every system has and that is nobody's."""
    return Account.of(pwd.getpwnam("nobody"))


@pytest.fixture
def disk() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ebb-"))
    path.chmod(0o711)
    yield path
    left = Node(path).left()
    for process in left:
        process.signal(signal.SIGKILL)
    trees.remove(path)
    shutil.rmtree(socket_dirs(path / "node"), ignore_errors=True)
    assert left == []


@pytest.fixture
def secret(disk: Path) -> Path:
    """A directory of root's with a file that nobody else may read."""
    folder = disk / "secret"
    folder.mkdir(mode=0o700)
    (folder / "key").write_text(SECRET)
    (folder / "key").chmod(0o600)
    return folder


@pytest.fixture
def own(disk: Path, somebody: Account) -> Path:
    """A directory of the account's."""
    folder = disk / "own"
    folder.mkdir()
    os.chown(folder, somebody.uid, somebody.gid)
    return folder
