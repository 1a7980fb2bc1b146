"""Snapshots between the wire and the core."""

from ebbtide_core.model.workdir_snapshot import SnapshotRef

from ebbtide_protos.v1 import job_pb2


def snapshot_from_message(message: job_pb2.Snapshot) -> SnapshotRef:
    """Which snapshot it is."""
    return SnapshotRef(message.digest, message.bytes)


def snapshot_to_message(snapshot: SnapshotRef) -> job_pb2.Snapshot:
    """The same on the wire."""
    return job_pb2.Snapshot(digest=snapshot.digest, bytes=snapshot.bytes)
