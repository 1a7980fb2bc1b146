"""Takes in the snapshots of working directories that clients upload for their jobs."""

from collections.abc import AsyncIterator
from typing import Any

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.model import workdir_snapshot
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.workdir_snapshot import SnapshotRef
from ebbtide_protos.spec import SNAPSHOTS
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import JOBS_OF_A_PART
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import Parts, RefusedError
from ebbtide_master.nodes.snapshots import SnapshotStore


class SnapshotService:
    """Finds and takes in snapshots of working directories."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._snapshots = master.snapshots

    async def FindSnapshot(self, request: job_pb2.Snapshot, context: Any) -> client_pb2.SnapshotState:
        """Say whether the master has a snapshot that the caller sent."""
        return client_pb2.SnapshotState(present=self._snapshots.has(_checked(request), caller().user))

    async def UploadSnapshot(
        self, request_iterator: AsyncIterator[client_pb2.SnapshotUpload], context: Any
    ) -> AsyncIterator[client_pb2.SnapshotState]:
        """Keep a snapshot, and reply once it is verified and on disk."""
        first = await anext(request_iterator, client_pb2.SnapshotUpload())
        snapshot = _checked(first.snapshot)
        kept, user = await self._loop.ask_in_parts(needed), caller().user
        self._snapshots.collect(kept)
        await self._snapshots.receive(snapshot, user, _windows(first, request_iterator), kept)
        yield client_pb2.SnapshotState(present=True)


def check_snapshot(snapshot: SnapshotRef | None, snapshots: SnapshotStore) -> None:
    """Raise `RefusedError` if a job's snapshot is not here, or was not sent by the caller."""
    if snapshot is not None and not snapshots.has(snapshot, caller().user):
        message = f"--snapshot: {snapshot.digest[:12]} is not here: submit it again"
        raise RefusedError(Refusal(RefusalKind.CONFLICT, message))


def needed(cluster: Cluster) -> Parts[dict[str, set[str]]]:
    """Return the digests of the snapshots that unfinished jobs start from, with the users of these jobs."""
    found = dict[str, set[str]]()
    for number, job in enumerate(list(cluster.state.unfinished.values())):
        if not number % JOBS_OF_A_PART:
            yield
        if job.spec.snapshot is not None:
            found.setdefault(job.spec.snapshot.digest, set()).add(job.user)
    return found


async def _windows(
    first: client_pb2.SnapshotUpload, rest: AsyncIterator[client_pb2.SnapshotUpload]
) -> AsyncIterator[bytes]:
    yield first.data
    async for message in rest:
        yield message.data


def _checked(message: job_pb2.Snapshot) -> SnapshotRef:
    snapshot = SNAPSHOTS.from_message(message)
    try:
        workdir_snapshot.check(snapshot)
    except ValueError as error:
        raise SpecError("--snapshot", str(error)) from None
    return snapshot
