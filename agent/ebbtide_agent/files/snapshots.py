"""Fetch the working directories that jobs were submitted with, and give each job its copy on this node.

    snapshots/<digest>.part       the part of the archive that has arrived; a later try goes on with it, unless the
                                  disk was full
    snapshots/<digest>/           the snapshot, unpacked when it was whole and verified; it is never changed
    workdirs/<job>/               the job's own copy: its working directory at every attempt on this node

A job of another account than the agent's has its copy below the checkpoint root, where that account can enter.

Each directory appears whole or not at all, even if the agent is killed.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tarfile
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from ebbtide import trees
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.job_dir import give, provide_private
from ebbtide_agent.files.clearing import ANSWER_S, clear, old_in, remove, set_aside, touch
from ebbtide_agent.files.exchange import Exchange, Unanswered, Unreadable
from ebbtide_agent.files.reading import WINDOW_BYTES
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask
from ebbtide_agent.jsonfile import DISK_FULL

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 30.0
"""Seconds without an answer after which a snapshot is not fetched."""
CACHED_S: Final = 24 * 3600.0
"""Seconds that an unpacked snapshot is kept after a job last began with it."""
WORKDIR_S: Final = 30 * CACHED_S
"""Seconds that a job's working directory is kept after an attempt last began or was in it: the user may want it."""
PERIOD_S: Final = 3600.0
"""Seconds from the end of one tidying to the next."""
_PAUSE_S: Final = 0.25
_GZIP: Final = 31
_FICLONE: Final = 0x40049409  # linux/fs.h: share a file's blocks until they are changed


class NotPlaced(Exception):
    """The job has no working directory here; the message says why, and `gone` whether it never will."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


class Damaged(ValueError):
    """What arrived is not the snapshot that was asked for."""


class SnapshotCache:
    """Fetches snapshots from the master, each once, and gives each job its own copy."""

    def __init__(self, node_dir: Path, exchange: Exchange) -> None:
        self._cache = node_dir / "snapshots"
        self._workdirs = node_dir / "workdirs"
        self._exchange = exchange
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._writing = defaultdict[str, threading.Lock](threading.Lock)  # a thread goes on if its launch is cancelled
        self._setting_aside = asyncio.Lock()  # held to set a directory aside, or to find out that a job needs it

    def workdir(self, job_id: str) -> Path:
        """Return where the copy of a job is, or will be, that runs as the agent's account."""
        return self._workdirs / job_id

    async def place(
        self, job_id: str, attempt: int, digest: str, account: Account | None = None, folder: Path | None = None
    ) -> Path:
        """Put the job's working directory in place, and return its path: for an account's job, in `folder`.

        Raises NotPlaced.
        """
        place = self.workdir(job_id) if folder is None or account is None else folder / job_id
        # Of many jobs that begin with the same snapshot, one fetches it.
        async with self._locks[digest]:
            try:
                if not await self._is_there(place):
                    await self._fetch(job_id, attempt, digest)
                    await self._write_once(digest, place, partial(_copy_tree, self._cache / digest, place, account))
            except (Unanswered, Unreadable, OSError, ValueError, zlib.error, tarfile.TarError) as error:
                raise NotPlaced(str(error), gone=isinstance(error, Unreadable)) from error
        return place

    async def tidy(self, in_use: Callable[[], Collection[str]], folder: Callable[[], Path]) -> NoReturn:
        """Collect now and every `PERIOD_S` seconds, until cancelled.

        The folder is asked for each time, because a node joins a cluster when it first attaches.
        """
        while True:
            try:
                await self.collect(in_use, folder())
            except Exception:  # nothing that jobs have left may end the tidying
                log.exception("event=not-tidied")
            await asyncio.sleep(PERIOD_S)

    async def collect(self, in_use: Callable[[], Collection[str]], folder: Path) -> None:
        """Remove directories that no attempt has begun with for long, except those of the jobs that are `in_use`.

        These are kept as if an attempt had begun with them now. A directory that cannot be removed stays.
        """
        for place, kept_s in ((self._cache, CACHED_S), (folder, WORKDIR_S), (self._workdirs, WORKDIR_S)):
            before = time.time() - kept_s
            for name in await _asked(old_in, place, before) or ():
                async with self._setting_aside:
                    wanted = place != self._cache and name in in_use()
                    gone = None if wanted else await _asked(set_aside, place, name, before)
                if gone:
                    await clear(Path(gone))
                elif wanted:
                    await _asked(touch, place / name)

    async def _is_there(self, path: Path) -> bool:
        """Return whether the directory is there, and if so mark it as used now."""
        async with self._setting_aside:
            return await on_daemon_thread(partial(touch, str(path)))

    async def _fetch(self, job_id: str, attempt: int, digest: str) -> None:
        tree, part = self._cache / digest, self._cache / f"{digest}.part"
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if await self._is_there(tree):
            return
        started = time.monotonic()
        try:
            await self._fetch_windows(job_id, attempt, digest, part)
        except OSError as error:
            if error.errno in DISK_FULL:  # the room that it took is given back; else a later try goes on with it
                part.unlink(missing_ok=True)
            raise
        try:
            await self._write_once(digest, tree, partial(_unpack, part, digest, tree))
        finally:
            part.unlink(missing_ok=True)  # if it was damaged, all of it is fetched again
        log.info("event=snapshot-unpacked job=%s digest=%s s=%.3f", job_id, digest[:12], time.monotonic() - started)

    async def _write_once(self, digest: str, path: Path, write: Callable[[], None]) -> None:
        """Have a thread write the path from the snapshot, unless another one that is just ending has written it."""
        writing = self._writing[digest]

        def write_after_others() -> None:
            with writing:
                if not path.exists():
                    write()

        await on_daemon_thread(write_after_others)

    async def _fetch_windows(self, job_id: str, attempt: int, digest: str, part: Path) -> None:
        """Append what is missing of the archive."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(part, flags, 0o600), "ab") as out:
            offset, end = os.fstat(out.fileno()).st_size, False
            while not end:
                window = await self._ask(job_id, attempt, digest, offset)
                out.write(window.data)
                offset, end = offset + len(window.data), window.end or not window.data

    async def _ask(self, job_id: str, attempt: int, digest: str, offset: int) -> agent_pb2.CheckpointData:
        """Ask until an answer comes. Raises Unanswered after `PATIENCE_S` without one, or Unreadable."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            request = agent_pb2.ReadCheckpoint(
                job_id=job_id, attempt=attempt, snapshot=digest, offset=offset, max_bytes=WINDOW_BYTES
            )
            try:
                return await self._exchange.ask(request)
            except Unanswered:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(_PAUSE_S)


async def _asked(task: Callable[..., T], place: Path, *arguments: str | float) -> T | None:
    """Return what the task says of the directory; None, and log why, if no answer comes."""
    try:
        answer = await ask(task, str(place), *arguments, account=None, within_s=ANSWER_S)
    except OSError as error:
        answer = NoAnswer(str(error))
    if isinstance(answer, NoAnswer):
        log.warning("event=not-tidied path=%r reason=%r", str(place), answer.reason)
        return None
    return answer


def _unpack(part: Path, digest: str, tree: Path) -> None:
    """Publish the archive's contents if they have the digest. Raises Damaged, OSError, TarError."""
    archive, draft = part.with_suffix(".tar"), tree.with_name(f".{tree.name}.new")
    remove(str(draft))
    try:
        _decompress(part, archive, digest)
        _extract(archive, draft)
        draft.rename(tree)
    finally:
        archive.unlink(missing_ok=True)
        remove(str(draft))


def _decompress(part: Path, archive: Path, digest: str) -> None:
    """Decompress the archive, and check its digest; the master has bounded its size. Raises Damaged, OSError."""
    seen, unpack = hashlib.sha256(), zlib.decompressobj(_GZIP)
    with part.open("rb") as source, archive.open("wb") as out:
        while data := source.read(WINDOW_BYTES):
            while data:
                block = unpack.decompress(data, WINDOW_BYTES)
                seen.update(block)
                out.write(block)
                data = unpack.unconsumed_tail
    if not unpack.eof or seen.hexdigest() != digest:
        raise Damaged(f"what came of snapshot {digest[:12]} is damaged")


def _extract(archive: Path, draft: Path) -> None:
    """Extract the files first and then the links, so that nothing is written through a link."""
    draft.mkdir(mode=0o700)
    links: list[tuple[Path, str]] = []
    with tarfile.open(archive, "r:") as content:
        for member in content:
            path = draft / _inside(member.name)
            _make_folders(draft, path.parent)
            if member.issym():
                links.append((path, member.linkname))
            elif (source := content.extractfile(member)) is not None and member.isreg():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                with open(os.open(path, flags, 0o755 if member.mode & 0o100 else 0o644), "wb") as out:
                    shutil.copyfileobj(source, out, WINDOW_BYTES)
            else:
                raise Damaged(f"{member.name[:200]!r} is neither a file nor a link")
    for path, target in links:
        path.symlink_to(target)


def _make_folders(draft: Path, folder: Path) -> None:
    missing = []
    while folder != draft and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o755)


def _inside(name: str) -> str:
    """Return the name if it stays below the directory. Raises Damaged."""
    if name.startswith("/") or not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise Damaged(f"{name[:200]!r} is not a path below the directory")
    return name


def _copy_tree(tree: Path, place: Path, account: Account | None) -> None:
    if account is None:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        provide_private(place.parent)
    draft = place.with_name(f".{place.name}.new")
    remove(str(draft))
    try:
        for folder in trees.walk(tree):
            _copy_folder(folder, draft / folder.path)
        os.utime(draft)
        if account is not None:
            give(draft, account)
        draft.rename(place)
    finally:
        remove(str(draft))


def _copy_folder(folder: trees.Folder, target: Path) -> None:
    target.mkdir()
    target.chmod(os.fstat(folder.descriptor).st_mode & 0o777)
    for name in folder.files:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode):
            os.symlink(os.readlink(name, dir_fd=folder.descriptor), target / name)
        else:
            _clone(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor), target / name)


def _clone(source: int, target: Path) -> None:
    """Share the file's blocks where the file system can, else copy them."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(source, "rb") as old, open(os.open(target, flags, os.fstat(old.fileno()).st_mode & 0o777), "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, WINDOW_BYTES)
