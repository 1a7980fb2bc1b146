"""A node to run real attempts on, whose disk is a short temporary directory."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from ebbtide import trees
from ebbtide_agent.attempts import backstop, registry, spawner
from ebbtide_agent.processes.cgroup import CPU, MEMORY, SUPERVISORS, ControlGroup, delegated, own_group

from tests.agent.supervisor.node import Node


def mounted() -> Path | None:
    """Where this process may make control groups, if anywhere."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    own = own_group(Path("/proc/self"))
    return own if lines and own is not None and os.access(own, os.W_OK) else None


def has_controllers() -> bool:
    """Whether groups that this process makes can be limited."""
    group = mounted()
    return group is not None and {CPU, MEMORY} <= set((group / "cgroup.subtree_control").read_text().split())


def may_mount() -> bool:
    """Whether this process may mount an image of a file system."""
    with tempfile.TemporaryDirectory() as folder:
        image, mount = Path(folder, "image"), Path(folder, "mount")
        image.write_bytes(bytes(1 << 20))
        mount.mkdir()
        commands = [["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, mount], ["umount", mount]]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            return not os.geteuid() and all(subprocess.run(command, **quiet).returncode == 0 for command in commands)
        except FileNotFoundError:
            return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, and so count, what needs control groups where there can be none, or may not mount what it needs."""
    conditions = {"cgroup": lambda: mounted() is not None, "controllers": has_controllers, "mounts": may_mount}
    for marker, holds in conditions.items():
        without = [item for item in items if item.get_closest_marker(marker)]
        if without and not holds():
            config.hook.pytest_deselected(items=without)
            items[:] = [item for item in items if item not in without]


MakeNode = Callable[..., AbstractAsyncContextManager[Node]]


PATIENT = """
from ebbtide_agent.supervisor import watch
from ebbtide_agent.supervisor.sealing import checkpoint_look
checkpoint_look._LOOK_S = watch._SETTLE_AFTER_STOP_S = watch._OUTPUT_AFTER_STOP_S = 60.0
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no hung one: nothing is given up because it was not there within a second or five."""
    monkeypatch.setattr(backstop, "END_S", 60.0)
    monkeypatch.setattr(registry, "_ADOPTION_S", 60.0)
    monkeypatch.setattr(spawner, "_BOOT", spawner._BOOT.replace("\nmain(", PATIENT + "main("))


@pytest.fixture
def disk() -> Iterator[Path]:
    """Where the node keeps everything; no process that belongs to it may be left in the end."""
    path = Path(tempfile.mkdtemp(prefix="ebb-"))
    yield path
    left = Node(path).left()
    for process in left:
        process.signal(signal.SIGKILL)
    trees.remove(path)
    assert left == []


@pytest.fixture
def agent(disk: Path) -> MakeNode:
    """An agent's attempts on that disk, for the length of a `with`; with `leave`, what runs then goes on."""

    @asynccontextmanager
    async def make(leave: bool = False, fake_gpus: bool = False, warm: int = 0, min_uid: int = 0):
        node = Node(disk, fake_gpus, warm, min_uid=min_uid)
        try:
            await node.attempts.start()
            yield node
        finally:
            if not leave:
                await node.end_all()
            await node.attempts.close()

    return make


@pytest.fixture
def delegation() -> Iterator[Path]:
    """A group for this process alone, as systemd would delegate one to the agent."""
    before = mounted()
    group = before / f"ebb-test-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text("0")
    delegated.cache_clear()
    yield group
    for pid in ControlGroup(group).pids():  # this one, and what stays with it to be asked about files
        ControlGroup(before).take(pid)
    delegated.cache_clear()
    left = [path for path in group.iterdir() if path.is_dir() and path.name != SUPERVISORS]
    ControlGroup(group).remove()
    assert left == []
