"""Who this node is: name, size, kernel boot, and the checkpoint directory it can reach."""

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
from ebbtide_protos.process import boot_id

from ebbtide_agent.processes import cgroup

ROOT_MARKER = ".ebbtide-root"
_DISCARD_PORT = 9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What the agent says of its node to the master; all but the GPUs."""

    name: str
    hostname: str
    boot_id: str
    incarnation: str  # of this agent process
    cpus: float
    mem_bytes: int
    checkpoint_root_id: str
    address: str = ""  # that other nodes reach it by; empty: the one that connections to the master leave from
    share_with_foreign: bool = False  # shares of GPUs may be given out beside processes of no job
    pool: str = "default"  # of nodes that are scheduled together
    cgroup: str = ""  # below which each attempt gets a control group; empty: none gets one
    labels: Mapping[str, str] = field(default_factory=dict)  # by which jobs select nodes
    taints: tuple[str, ...] = ()  # which keep all jobs away that do not tolerate them


def describe(
    name: str, cpus: float | None, mem_bytes: int | None, checkpoint_root: Path, address: str = ""
) -> NodeDescription:
    """This machine as a node; what is not given is measured. Raises OSError if the checkpoint root is not writable."""
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
    """The name, or the host's if none is given. Raises ValueError if it could not be a directory's name."""
    name = given or socket.gethostname()
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"node name {name!r}: up to 63 letters, digits, '.', '_' and '-', not starting with a mark")
    return name


def root_id(root: Path) -> str:
    """Identity of a checkpoint root: the same for every node that sees the same directory. Raises OSError."""
    if not root.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            root.chmod(0o711)  # jobs of other accounts find theirs below it
    marker = root / ROOT_MARKER
    if not marker.exists():
        _place_marker(marker)
    return marker.read_text().strip()


async def address_towards(host: str) -> str:
    """The address of this machine that a connection to the host leaves from. Sends nothing. Raises OSError."""
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
