"""A node to run real attempts on, whose disk is a short temporary directory."""

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.agent.supervision.node import Node

MakeNode = Callable[..., AbstractAsyncContextManager[Node]]


@pytest.fixture
def disk() -> Iterator[Path]:
    """Where the node keeps everything; no process that belongs to it may be left in the end."""
    path = Path(tempfile.mkdtemp(prefix="ebb-"))
    yield path
    left = Node(path).processes()
    for process in left:
        process.signal(signal.SIGKILL)
    shutil.rmtree(path)
    assert left == []


@pytest.fixture
def agent(disk: Path) -> MakeNode:
    """An agent's attempts on that disk, for the length of a `with`; with `leave`, what runs then goes on."""

    @asynccontextmanager
    async def make(leave: bool = False, fake_gpus: bool = False, warm: int = 0):
        node = Node(disk, fake_gpus, warm)
        try:
            await node.attempts.start()
            yield node
        finally:
            if not leave:
                await node.end_all()
            await node.attempts.close()

    return make
