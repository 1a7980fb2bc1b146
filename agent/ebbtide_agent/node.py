"""Describes this node: its name, size, kernel boot, and the checkpoint directory that it can reach."""

import asyncio
import os
import re
import secrets
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from ebbtide_machine.process import boot_id

from ebbtide_agent.processes import cgroup

ROOT_MARKER = ".ebbtide-root"
_DISCARD_PORT = 9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What the agent tells the master about its node, without the GPUs."""

    name: str
    hostname: str
    boot_id: str
    incarnation: str  # of this agent process
    cpus: float
    mem_bytes: int
    checkpoint_root_id: str
    address: str = ""  # by which other nodes reach it; empty: the one that connections to the master leave from
    share_with_foreign: bool = False  # whether shares of a GPU may be allocated beside foreign processes
    pool: str = "default"  # the pool of the node
    cgroup: str = ""  # the parent of the attempts' control groups; empty: attempts have none
    labels: Mapping[str, str] = field(default_factory=dict)  # by which jobs select nodes
    taints: tuple[str, ...] = ()  # keep away all jobs that do not tolerate them


def describe(
    name: str, cpus: float | None, mem_bytes: int | None, checkpoint_root: Path, address: str = ""
) -> NodeDescription:
    """Describe this machine; CPUs and memory that are None are measured. Raises OSError if the root is not writable."""
    return NodeDescription(
        name=name,
        hostname=socket.gethostname(),
        boot_id=boot_id(),
        incarnation=uuid.uuid4().hex,
        cpus=float(len(os.sched_getaffinity(0))) if cpus is None else cpus,
        mem_bytes=psutil.virtual_memory().total if mem_bytes is None else mem_bytes,
        checkpoint_root_id=root_id(checkpoint_root),
        address=address,
        cgroup=str(cgroup.parent_of_attempts() or ""),
    )


def node_name(given: str) -> str:
    """Return the given name, or the host's if it is empty. Raises ValueError if the name cannot be a directory's."""
    name = given or socket.gethostname()
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"node name {name!r}: up to 63 letters, digits, '.', '_' and '-', not starting with a mark")
    return name


def root_id(root: Path) -> str:
    """Return the identity of a checkpoint root, which all nodes with that directory share. Raises OSError."""
    if not root.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            root.chmod(0o711)  # jobs of other accounts must reach their directories below it
    marker = root / ROOT_MARKER
    if not marker.exists():
        _place_marker(marker)
    return marker.read_text().strip()


async def address_towards(host: str) -> str:
    """Return this machine's address for connections to the host. Sends nothing. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _place_marker(marker: Path) -> None:
    draft = marker.with_name(f"{ROOT_MARKER}.{secrets.token_hex(8)}")
    try:
        with draft.open("x") as file:
            file.write(uuid.uuid4().hex + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link does not replace the marker that another node placed a moment ago.
        os.link(draft, marker)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
