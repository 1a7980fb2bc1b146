"""Checks where a journal lies: not on another machine's disk, and not in another user's directory."""

import os
from pathlib import Path
from typing import Final

from ebbtide_machine.place import NotTrusted, check_folder

from ebbtide_master.store.journal import StoreError

NETWORK: Final = frozenset(
    {
        "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
        "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "wekafs",
        "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.nfs",
        "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs",
    }
)  # fmt: skip
"""Filesystems on which a lock may not keep other machines out, or a commit may not have reached a disk."""
MOUNTS: Final = Path("/proc/self/mountinfo")


def check_place(folder: Path) -> None:
    """Raise `StoreError` if the journal must not lie in ``folder``, which exists."""
    kind = filesystem_of(folder.resolve(), MOUNTS.read_text())
    if kind in NETWORK:
        words = "locks and commits there are not to be trusted; name a local directory with EBB_HOME"
        raise StoreError(f"{folder} is on a network filesystem ({kind}): {words}")
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise StoreError(f"{folder} belongs to uid {owner}, and this is uid {os.geteuid()}: it is not ours")
    try:
        check_folder(folder)
    except NotTrusted as error:
        raise StoreError(str(error)) from None


def filesystem_of(path: Path, mounts: str) -> str:
    """Return the type of the filesystem of the absolute ``path``, from ``mounts`` (text of /proc/self/mountinfo)."""
    found, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))  # a blank is written as \040
        # Of several mounts on one directory, the last one is visible.
        if (path == point or point in path.parents) and len(point.parts) >= found:
            found, kind = len(point.parts), after.split()[0]
    return kind
