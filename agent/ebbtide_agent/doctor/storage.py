"""Checks the disks on which the journal and the checkpoints lie."""

import fcntl
import os
import secrets
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ebbtide_agent.doctor.finding import Finding, note, ok, problem, warning
from ebbtide_agent.doctor.subject import Subject
from ebbtide_agent.node import ROOT_MARKER

GIB = 2**30
LEAST_BYTES = GIB
FEW_BYTES = 20 * GIB
SLOW_SYNC_S = 0.05
SYNCS = 5


def space(check: str, path: Path) -> Finding:
    """Check whether the disk has room."""
    place = existing(path)
    usage = shutil.disk_usage(place)
    files = os.statvfs(place)
    text = f"{path}: {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"
    if usage.free < LEAST_BYTES:
        return problem(check, text, f"free some: du -xh -d2 {place} | sort -h | tail")
    if files.f_files and files.f_favail < files.f_files // 100:
        return problem(
            check, f"{path}: {files.f_favail} inodes free", f"remove small files: find {place} -xdev | wc -l"
        )
    if usage.free < FEW_BYTES:
        return warning(check, f"{text}: not many checkpoints", f"free some: du -xh -d2 {place} | sort -h | tail")
    return ok(check, text)


def home(subject: Subject) -> Iterator[Finding]:
    """Check where journal, logs and sockets lie: room, and how long an fsync takes (every job waits for one)."""
    yield space("EBB_HOME", subject.home)
    with _scratch(existing(subject.home)) as folder:
        seconds = _sync_s(folder / "sync")
    text = f"an fsync takes {1000 * seconds:.1f} ms"
    if seconds > SLOW_SYNC_S:
        yield warning("EBB_HOME", f"{text}: so long every submit waits at least", "put EBB_HOME on a local SSD")
    else:
        yield ok("EBB_HOME", text)


def checkpoints(subject: Subject) -> Iterator[Finding]:
    """Check where checkpoints lie: room, atomic renames, locks, and whether other nodes have the same directory."""
    root = subject.root
    yield space("checkpoints", root)
    try:
        with _scratch(existing(root)) as folder:
            yield from _judge_renames(folder)
            yield from _judge_locks(folder)
    except OSError as error:
        text = f"{root}: cannot be written: {error.strerror or error}"
        yield problem("checkpoints", text, f"sudo chown $USER {existing(root)}, or ebb agent --checkpoint-root DIR")
        return
    yield judge_root(root_id(root), subject.other_roots, root)


def judge_root(own: str, others: dict[str, str], root: Path) -> Finding:
    """Judge the id of the checkpoint root beside those of the other nodes, which `others` has by name."""
    same = sorted(node for node, id in others.items() if id == own)
    apart = sorted(others.keys() - set(same))
    if not others:
        return ok("checkpoints", f"{root}: renames are atomic, locks hold; there is no other node to share it with")
    if not own:
        text = f"{root} has no {ROOT_MARKER} yet: no agent has used it, so it is not shared with {', '.join(others)}"
        return note("checkpoints", text, "mount the other nodes' directory: ebb agent --checkpoint-root DIR")
    if apart:
        text = f"{root} is not the one of {', '.join(apart)}: jobs do not go there with their checkpoints"
        return note(
            "checkpoints", text, "mount one directory on all: ebb agent --checkpoint-root DIR; or --move-checkpoints"
        )
    return ok("checkpoints", f"{root} is shared with {', '.join(same)}")


def root_id(root: Path) -> str:
    """Return the directory's id; empty if it has none yet. Unlike an agent, this creates none."""
    try:
        return (root / ROOT_MARKER).read_text().strip()
    except OSError:
        return ""


def existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _judge_renames(folder: Path) -> Iterator[Finding]:
    """Check that a reader that has the old file open still sees it whole after a new one has taken its place."""
    target, draft = folder / "renamed", folder / "draft"
    target.write_text("old")
    draft.write_text("new")
    with target.open() as reader:
        draft.replace(target)
        if reader.read() != "old" or target.read_text() != "new" or draft.exists():
            advice = "use a POSIX file system (NFSv4, ext4, XFS, Lustre)"
            yield problem("checkpoints", f"{folder.parent}: renames are not atomic", advice)


def _judge_locks(folder: Path) -> Iterator[Finding]:
    path = folder / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield problem(
                "checkpoints",
                f"{folder.parent}: flock locks nothing there",
                "mount it with locks (NFS: without nolock)",
            )
    except OSError as error:
        text = f"{folder.parent}: no file locks: {error.strerror}"
        yield problem("checkpoints", text, "mount it with locks (Lustre: -o flock; NFS: start rpc.statd)")
    finally:
        os.close(first)
        os.close(second)


def _sync_s(path: Path) -> float:
    """Return the median time of writing a page durably, in seconds."""
    taken = list[float]()
    with closing(path.open("wb", buffering=0)) as file:
        for _ in range(SYNCS):
            began = time.monotonic()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            taken.append(time.monotonic() - began)
    return statistics.median(taken)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Create a directory for trials, and remove it afterwards. Raises OSError."""
    folder = parent / f".ebbtide-doctor.{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
