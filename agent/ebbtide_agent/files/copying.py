"""Copy a job's newest checkpoint from the node that has it, before an attempt starts here.

The files go one by one into a draft beside their final place. If this agent or its node broke down half-way, the parts
that arrived are kept until a copy of another checkpoint begins; if the disk is full, they are removed. The draft is not
taken for a checkpoint before every digest of its manifest matched.
"""

import asyncio
import errno
import hashlib
import logging
import os
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeVar

from ebbtide import checkpoints, trees
from ebbtide.checkpoints import MANIFEST, File, InvalidCheckpoint
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.accounts.rights import with_rights
from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.contract.job_dir import provide_job_dir
from ebbtide_agent.files.exchange import Exchange, Unanswered, Unreadable
from ebbtide_agent.files.reading import WINDOW_BYTES, checkpoint_below
from ebbtide_agent.jsonfile import DISK_FULL

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_S = 30.0
"""Seconds without an answer after which the copy is given up."""
_PAUSE_S = 0.25
TOUCHED_S = 60.0
"""Seconds that a file system may take for one window or name; then the copy is given up, to make room for others."""
READ_S = 1800.0
"""Seconds that a file system may take for a whole checkpoint."""
_WINDOWS = 4
"""Windows that are asked for ahead; this bounds the memory that the copy takes on both nodes and in the master."""
_TRIES = 3
"""How often a file is fetched whose digest is not the one in the manifest."""
_MANIFEST_BYTES = 64 * 1024 * 1024


class NotCopied(Exception):
    """The checkpoint could not be copied; the message says why."""


class Copy:
    """The copy of one job's newest checkpoint, for one attempt."""

    def __init__(
        self, exchange: Exchange, job_dir: Path, job_id: str, attempt: int, account: Account | None = None
    ) -> None:
        """The copy is written with the account's rights; None: with the agent's own."""
        self._account = account
        self._exchange = exchange
        self._job_dir = job_dir
        self._job_id = job_id
        self._attempt = attempt

    async def bring(self) -> str:
        """Copy, verify and publish the checkpoint; return its name, empty if the job has none. Raises NotCopied."""
        try:
            name = (await self._ask("", "", 0, 0)).checkpoint
            if name:
                if self._account is not None:
                    await on_daemon_thread(partial(provide_job_dir, self._job_dir, self._account))
                await self._bring(name, checkpoint_below(self._job_dir, name))
        except (Unanswered, Unreadable, InvalidCheckpoint, OSError, ValueError) as error:
            raise NotCopied(str(error)) from error
        return name

    async def _bring(self, name: str, path: Path) -> None:
        draft = checkpoints.copy_of(path)
        await self._do(partial(checkpoints.remove_other_copies, self._job_dir, draft), READ_S)
        if await self._do(partial(_is_valid, path), READ_S):
            return
        try:
            await self._fill(name, path, draft)
        except OSError as error:
            if error.errno in DISK_FULL:
                with suppress(OSError):
                    await self._do(partial(trees.remove, draft), READ_S)
            raise

    async def _fill(self, name: str, path: Path, draft: Path) -> None:
        """Copy into the draft what it lacks, and publish it as `path`."""
        await self._do(partial(draft.mkdir, mode=0o700, parents=True, exist_ok=True))
        await self._bring_manifest(name, draft)
        files = await self._do(partial(checkpoints.listed, draft))
        await self._do(partial(_remove_others, draft, files))
        for file in files:
            await self._bring_file(name, draft, file)
        await self._do(partial(checkpoints.publish_copy, path), READ_S)
        size = sum(file.bytes for file in files)
        log.info("event=checkpoint-copied job=%s attempt=%d checkpoint=%s bytes=%d", *self._key, name, size)

    @property
    def _key(self) -> AttemptKey:
        return self._job_id, self._attempt

    async def _do(self, call: Callable[[], T], within_s: float = TOUCHED_S) -> T:
        """Touch files with the account's rights, in its directories. Raises NotCopied if these do not answer."""
        try:
            async with asyncio.timeout(within_s):
                return await on_daemon_thread(partial(with_rights, self._account, call))
        except TimeoutError:
            raise NotCopied(f"{self._job_dir} does not answer") from None

    async def _bring_manifest(self, name: str, draft: Path) -> None:
        """Fetch the manifest, even if the draft has one, because it decides which parts of the draft are right."""
        content = bytearray()
        while True:
            window = await self._ask(name, MANIFEST, len(content), WINDOW_BYTES)
            content += window.data
            if len(content) > _MANIFEST_BYTES:
                raise InvalidCheckpoint(f"{name}/{MANIFEST}: more than {_MANIFEST_BYTES} bytes")
            if window.end:
                break
        await self._do(partial((draft / MANIFEST).write_bytes, content))

    async def _bring_file(self, name: str, draft: Path, file: File) -> None:
        path = draft / file.path
        await self._do(partial(path.parent.mkdir, mode=0o700, parents=True, exist_ok=True))
        for _ in range(_TRIES):
            await self._bring_windows(name, file, path)
            if await self._do(partial(_digest, path), READ_S) == file.sha256:
                return
            log.warning("event=copy-damaged job=%s attempt=%d file=%s", *self._key, file.path)
            await self._do(path.unlink)
        raise InvalidCheckpoint(f"{name}/{file.path}: what arrives has not the digest of its manifest")

    async def _bring_windows(self, name: str, file: File, path: Path) -> None:
        """Append what is missing of the file. A few windows are asked for at a time, and written in order."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        out = os.fdopen(await self._do(partial(os.open, path, flags, 0o600)), "ab", buffering=0)
        try:
            asked = await self._do(partial(_begun, out.fileno(), file.bytes))
            windows: deque[asyncio.Task[agent_pb2.CheckpointData]] = deque()
            try:
                while windows or asked < file.bytes:
                    while asked < file.bytes and len(windows) < _WINDOWS:
                        size = min(WINDOW_BYTES, file.bytes - asked)
                        windows.append(asyncio.create_task(self._whole(name, file.path, asked, size)))
                        asked += size
                    await self._do(partial(_append, out, (await windows.popleft()).data))
            finally:
                for window in windows:
                    window.cancel()
                await asyncio.gather(*windows, return_exceptions=True)
        finally:
            await on_daemon_thread(out.close)

    async def _whole(self, name: str, file: str, offset: int, size: int) -> agent_pb2.CheckpointData:
        window = await self._ask(name, file, offset, size)
        if len(window.data) != size:
            raise InvalidCheckpoint(f"{name}/{file}: is shorter than its manifest says")
        return window

    async def _ask(self, name: str, file: str, offset: int, size: int) -> agent_pb2.CheckpointData:
        """Ask until an answer comes. Raises Unanswered after `PATIENCE_S` without one, or Unreadable."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + PATIENCE_S
        while True:
            request = agent_pb2.ReadCheckpoint(
                job_id=self._job_id, attempt=self._attempt, checkpoint=name, file=file, offset=offset, max_bytes=size
            )
            try:
                return await self._exchange.ask(request)
            except Unanswered:
                if loop.time() > give_up:
                    raise
            await asyncio.sleep(_PAUSE_S)


def _is_valid(path: Path) -> bool:
    try:
        checkpoints.verify(path)
    except (InvalidCheckpoint, OSError):
        return False
    return True


def _begun(out: int, most: int) -> int:
    """Return how many bytes of the file are there; a file that is too long is emptied. Raises OSError."""
    facts = os.fstat(out)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "what has the name of a checkpoint's file is none")
    if facts.st_size > most:
        os.truncate(out, 0)
        return 0
    return facts.st_size


def _append(out: FileIO, data: bytes) -> None:
    """Append the data. Raises OSError, or ValueError if the file was closed after the wait for it was given up."""
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) or 0 :]


def _digest(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_others(draft: Path, files: tuple[File, ...]) -> None:
    """Remove what another checkpoint of the same name left in the draft."""
    wanted = {MANIFEST, *(file.path for file in files)}
    for folder in trees.walk(draft):
        for name in folder.files:  # links are among them
            if folder.below(name) not in wanted:
                os.unlink(name, dir_fd=folder.descriptor)
