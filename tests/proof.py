"""How a test proves to be the account that runs the master, as `ebb` does, or to be the master."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from ebbtide_cli.masters.credentials import ProvenChannel
from ebbtide_machine.process import Identity
from ebbtide_protos import home_socket


def proven(channel: Any, home: Path) -> Any:
    """The channel, of either kind, with the token that the master of ``home`` left there in each call."""
    return ProvenChannel(channel, (home / "token").read_text().strip())


@contextmanager
def reach(home: Path, options: Sequence[Any] = (), *, over: Path | None = None) -> Iterator[Any]:
    """A channel to the master of ``home``, for stubs, at its socket, or at the one in another home, of a proxy."""
    local = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    # Not by what `ebb` does first: a home may be another mount namespace's.
    folder = os.open((over or home) / home_socket.FOLDER, os.O_PATH)
    try:
        with grpc.secure_channel(f"unix:/proc/self/fd/{folder}/{home_socket.NAME}", local, options=options) as channel:
            yield proven(channel, home)
    finally:
        os.close(folder)


def publish(home: Path, **facts: Any) -> None:
    """A `master.json` in which this process says that it is the master."""
    draft = home / ".master.json"
    draft.write_text(json.dumps(Identity.own().to_json() | facts))
    draft.chmod(0o600)
    draft.replace(home / "master.json")
