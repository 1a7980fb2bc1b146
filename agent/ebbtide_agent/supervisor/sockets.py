"""Create the sockets of an attempt's supervisor: for agents, the job, processes of a session, and attached users.

The sockets for orders, standard input and processes of a session lie in the attempt's own directory. Those for the
job's processes lie there too, or in the attempt's socket directory if the job runs as another account than the agent's.
"""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide_machine.process import Identity

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.attempt_dir import JOB_SOCKET, PARTICIPANTS_SOCKET, AttemptDir
from ebbtide_agent.contract.intent import Intent


@dataclass(frozen=True, slots=True)
class Sockets:
    """All sockets of a supervisor, bound; those that take connections listen."""

    control: socket.socket
    job: socket.socket
    participants: socket.socket  # processes of the job connect here, and are asked to leave over the connection
    session_processes: socket.socket
    session: socket.socket | None  # for the first process, if that is a session that users attach to
    input: socket.socket | None  # the attempt's standard input comes here, if it has any


def claim(place: AttemptDir, content: dict[str, Any], intent: Intent, supervisor: Identity) -> Sockets | None:
    """Create the attempt's directory, and all that its supervisor has there; None if another supervisor was first."""
    try:
        place.path.mkdir(mode=0o700)
    except FileExistsError:
        return None
    if intent.account is not None:
        place.make_socket_dir()
    sockets = _bound(place, intent)
    place.reserve_final_status()
    place.record_intent(content)
    return sockets if place.claim(supervisor.to_json()) else None


def _bound(place: AttemptDir, intent: Intent) -> Sockets:
    front = place.front(intent.account)
    session = None
    if intent.session:
        session = _bind(front / "session.sock", socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, listening=True)
    job = _bind(front / JOB_SOCKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    participants = _bind(front / PARTICIPANTS_SOCKET, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, listening=True)
    if intent.account is not None:
        _give(front, intent, intent.account)
    return Sockets(
        control=_bind(place.control_socket, socket.SOCK_STREAM, listening=True),
        job=job,
        participants=participants,
        session_processes=_bind(place.process_socket, socket.SOCK_SEQPACKET, listening=True),
        session=session,
        input=_bind(place.input_socket, socket.SOCK_SEQPACKET, listening=True) if intent.stdin else None,
    )


def _give(socket_dir: Path, intent: Intent, account: Account) -> None:
    """Let the account write to the job's sockets, but not to their directory.

    That also holds the files that `srun` locks, which no other account may open, and the list of the attempt's GPUs, in
    case its other records are lost.
    """
    for name in (JOB_SOCKET, PARTICIPANTS_SOCKET):
        os.chmod(socket_dir / name, 0o600)
        os.chown(socket_dir / name, account.uid, account.gid)
    (socket_dir / "gpus").write_text(json.dumps({"gpus": [{"uuid": gpu.uuid} for gpu in intent.gpus]}))
    for index in range(len(intent.gpus) if intent.slurm else 0):
        lock = os.open(socket_dir / f"gpu-{index}.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o400)
        os.fchown(lock, account.uid, account.gid)
        os.close(lock)


def _bind(path: Path, kind: int, *, listening: bool = False) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, kind)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # The path goes through the descriptor, because a socket's path must not have more than 107 bytes.
    bound.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)
    if listening:
        bound.listen()
    return bound
