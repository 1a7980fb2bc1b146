"""Send a packed working directory to the master, unless the master has it already."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ebbtide_core.model.workdir_snapshot import SnapshotRef
from ebbtide_protos.spec import SNAPSHOTS
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.errors import Failure, Unreachable
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import RETRY_S, ask, connected
from ebbtide_cli.snapshot.files import list_files
from ebbtide_cli.snapshot.packing import Progress, check_size, compressed, take
from ebbtide_cli.terminal.output import StatusLine
from ebbtide_cli.values import format_size
from ebbtide_cli.wire.status import CallFailed

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

SHOWN_AFTER_S: Final = 2.0
UPLOAD_S: Final = 3600.0
RESENT_S: Final = 30.0
"""Seconds for which sending is tried again if the master goes away."""


def take_snapshot(root: Path, limit: int) -> SnapshotRef:
    """Return the digest and size of ``root``'s archive; `Failure` if it cannot be packed or is over ``limit`` bytes."""
    entries = list_files(root)
    check_size(entries, limit)
    with StatusLine() as line:
        return take(root, entries, _shown(line, "reading"))


def send_snapshot(master: str | Address | None, root: Path, snapshot: SnapshotRef) -> None:
    """Send the snapshot if the master lacks it; send it again if the master restarts. `Failure` if files changed."""
    found, give_up = False, math.inf
    while True:
        try:
            with connected(master) as stub:
                found = True
                _send(stub, root, snapshot)
                return
        except Unreachable:
            if not found or time.monotonic() > give_up:
                raise
            give_up = min(give_up, time.monotonic() + RESENT_S)
        time.sleep(RETRY_S)


def _send(stub: "ClientServiceStub", root: Path, snapshot: SnapshotRef) -> None:
    message = SNAPSHOTS.to_message(snapshot)
    if ask(stub.FindSnapshot, message).present:
        return
    failures: list[Failure] = []
    with StatusLine() as line:
        windows = compressed(root, list_files(root), _shown(line, "sending"))
        messages = _messages(client_pb2.SnapshotUpload(snapshot=message), windows, failures)
        try:
            next(stub.UploadSnapshot(messages, timeout=UPLOAD_S), None)
        except CallFailed:
            if not failures:  # else the master refused it because its end is missing
                raise
    if failures:
        raise failures[0]


def _messages(
    first: client_pb2.SnapshotUpload, windows: Iterator[bytes], failures: list[Failure]
) -> Iterator[client_pb2.SnapshotUpload]:
    """Yield the messages of an upload, up to the first file that cannot be read: that goes into ``failures``.

    gRPC's library, which iterates on a thread of its own, would print it with a traceback, and lose it.
    """
    yield first
    try:
        for window in windows:
            yield client_pb2.SnapshotUpload(data=window)
    except Failure as failure:
        failures.append(failure)


def _shown(line: StatusLine, doing: str) -> Progress:
    """Return a function that shows the progress, once it has taken long enough that a user may wonder."""
    began = time.monotonic()

    def show(done: int, total: int) -> None:
        if time.monotonic() - began > SHOWN_AFTER_S:
            line.show(
                "snapshot:", doing, f"{format_size(done)} of {format_size(total)}", done=done / total if total else 1
            )

    return show
