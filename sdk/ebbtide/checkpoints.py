"""Publishes, verifies, seals and removes checkpoints on disk.

A checkpoint is published by one rename, proven by digests, and removed only once newer ones are proven. A job
directory holds one directory per attempt, and each attempt writes into its own only, so that an attempt that should be
dead can never overwrite what a later one wrote:

    <job_dir>/attempt-<n>/step-<12 digits>/{files…, MANIFEST.json}     published through this module
    <job_dir>/attempt-<n>/{files…, MANIFEST.json}                      sealed after the last process had ended
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ebbtide import manifests, regular, trees
from ebbtide.manifests import MANIFEST as MANIFEST
from ebbtide.manifests import Content, Manifest
from ebbtide.manifests import File as File
from ebbtide.manifests import InvalidCheckpoint as InvalidCheckpoint

_BUFFER_BYTES = 256 * 1024
_ATTEMPT = re.compile(r"attempt-(\d+)")
_STEP = re.compile(r"step-(\d{12,})(?:\.(\d+))?")
_COPY = "-copy"
_DRAFTS = (".step-", ".attempt-")
# A save's draft has the pid of the process that fills it; a copy's has none.
_DRAFT = re.compile(r"\.(?:step|attempt)-[\d.]+(?:-(\d+))?-(?:[0-9a-f]+|copy)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint that a job can resume from.

    `step` is the number of steps done at the save, and `bytes` the total size of the files. For files that a script
    wrote without this module `step` is None, and `complete` is False if the save may be unfinished, because a process
    of the attempt was killed. `cut_short` says that there is reason to believe that the save is unfinished.
    """

    path: Path
    step: int | None
    attempt: int
    bytes: int
    complete: bool
    cut_short: bool = False


def possible() -> bool:
    """Return whether this system has the open directories that checkpoints are written through; Windows has not."""
    return os.open in os.supports_dir_fd


def publish(attempt_dir: Path, step: int, write: Callable[[Path], object], *, job_id: str, attempt: int) -> Checkpoint:
    """Let `write` fill an empty directory, publish it whole and durable as the attempt's checkpoint, and return that.

    Raises what `write` raises, OSError on a full disk or for too many files, and ValueError if `step` is negative or
    `write` left no file or one named MANIFEST.json. Nothing is published then, and older checkpoints stay untouched. If
    a step is published twice, both checkpoints stay, the second as `step-<12 digits>.1`, so that a valid one exists at
    every moment.
    """
    if step < 0:
        raise ValueError(f"step must not be negative, got {step}")
    _create(attempt_dir)
    draft = attempt_dir / f".{_step_name(step)}-{os.getpid()}-{secrets.token_hex(4)}"
    draft.mkdir()
    try:
        write(draft)
        if regular.is_there(draft / MANIFEST):
            raise ValueError(f"a checkpoint must not contain a file named {MANIFEST}")
        content = _record(draft)
        if not content.files:
            raise ValueError("the save function wrote no file into the directory that it was given")
        manifest = manifests.describe(job_id, attempt, step, True, "sdk", content)
        _write_durably(draft / MANIFEST, manifests.encoded(manifest))
        _sync(draft)
        path = _place(draft, attempt_dir, step)
    except BaseException:
        _discard(draft)
        raise
    _sync(attempt_dir)
    _sync(attempt_dir.parent)
    return Checkpoint(path, step, attempt, sum(file.bytes for file in content.files), True)


def inspect(path: Path) -> Checkpoint:
    """Compare the files' names and sizes with the manifest, and return the checkpoint; raises as `verify` does.

    This is a cheap check for a checkpoint that was verified a moment ago: it reads no data and sees no flipped bit.
    """
    return _compare_sizes(path, manifests.read(path))


def verify(path: Path) -> Checkpoint:
    """Compare every file with the manifest, digests too, and return the checkpoint.

    Raises InvalidCheckpoint that names the first difference, and OSError if a file cannot be read for a reason that may
    pass.
    """
    manifest = manifests.read(path)
    checkpoint = _compare_sizes(path, manifest)
    for file in manifest.files:
        try:
            with open(regular.open_regular(path / file.path), "rb") as stream:
                digest = _sha256(stream)
        except OSError as error:
            raise manifests.unreadable(path / file.path, error) from error
        if digest != file.sha256:
            raise InvalidCheckpoint(f"{path / file.path}: its SHA-256 digest is not the one in {MANIFEST}")
    return checkpoint


def listed(path: Path) -> tuple[File, ...]:
    """Return the files that the checkpoint's manifest lists; a copy may still lack them. Raises InvalidCheckpoint."""
    return manifests.read(path).files


def copy_of(path: Path) -> Path:
    """Return where a copy that is to be the checkpoint `path` is made: beside it, never taken for a checkpoint."""
    return path.with_name(f".{path.name}{_COPY}")


def remove_other_copies(job_dir: Path, kept: Path) -> None:
    """Remove the unfinished copies in the job's directory, except `kept`, which may be gone on with."""
    for path, _ in _drafts(job_dir):
        if path.name.endswith(_COPY) and path != kept:
            _discard(path)


def publish_copy(path: Path) -> Checkpoint:
    """Publish the copy in `copy_of(path)` as `path`, whole and durable, in place of what was there, and return it.

    The caller has just computed the digests of all files; names and sizes are compared once more, and what the manifest
    says of links and of folders without files is made. Raises InvalidCheckpoint if they differ, and OSError if the copy
    cannot be made durable.
    """
    draft = copy_of(path)
    manifest = manifests.read(draft)
    _compare_sizes(draft, manifest)
    for name in manifest.content.folders:
        (draft / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    links = dict(manifest.content.links)
    for name, target in links.items():
        (draft / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (draft / name).symlink_to(target)
    for folder in trees.walk(draft):
        for name in folder.files:
            if folder.below(name) not in links:
                _sync_file(name, folder.descriptor)
        os.fsync(folder.descriptor)
    if regular.is_there(path):
        _remove(path)
    draft.rename(path)
    _sync(path.parent)
    _sync(path.parent.parent)
    return inspect(path)


def newest_valid(
    job_dir: Path, before_attempt: int | None = None, *, skips_unreadable: bool = False
) -> Checkpoint | None:
    """Return the newest checkpoint that verifies, by attempt and then by step, or None if there is none.

    With `before_attempt` only earlier attempts count. A checkpoint whose save was cut short is passed over if an older
    one is complete. Raises OSError for one, or an attempt's directory, that cannot be read for a reason that may pass,
    unless `skips_unreadable`; and in any case if the job's directory cannot be listed.
    """
    newest: Checkpoint | None = None
    for found in _valid(_candidates(job_dir, before_attempt, skips_unreadable), skips_unreadable):
        if found.complete or not (newest or found).cut_short:
            return found
        newest = newest or found
    return newest


def newest_valid_in(attempt_dir: Path) -> Checkpoint | None:
    """Return the newest checkpoint published in this attempt that verifies, or None if there is none.

    Raises OSError as `newest_valid` does.
    """
    return next(_valid(_step_dirs(attempt_dir)), None)


def any_complete(job_dir: Path, before_attempt: int) -> bool:
    """Return whether an attempt before this one left a complete checkpoint, by names and sizes; no data is read.

    One that cannot be read does not count. Raises OSError if the job's directory cannot be listed.
    """
    for path in _candidates(job_dir, before_attempt, skips_unreadable=True):
        with contextlib.suppress(InvalidCheckpoint, OSError):
            if inspect(path).complete:
                return True
    return False


def newest_is_published(job_dir: Path, before_attempt: int, *, skips_unreadable: bool = False) -> bool:
    """Return whether the newest checkpoint before this attempt was published through this module, not sealed.

    One whose save was cut short does not count. No data is read. Raises OSError as `newest_valid` does.
    """
    for path in _candidates(job_dir, before_attempt, skips_unreadable):
        if _STEP.fullmatch(path.name):
            return True
        with contextlib.suppress(InvalidCheckpoint, *_passed_over(skips_unreadable)):
            if not manifests.read(path).cut_short:
                return False
    return False


def unsealed(job_dir: Path, before_attempt: int, *, skips_unreadable: bool = False) -> list[int]:
    """Return the attempts before this one that published nothing and were not sealed, newest first.

    What is older than a checkpoint is left out, because nothing would be resumed from it. Raises OSError as
    `newest_valid` does; with `skips_unreadable` an attempt of which nobody can tell is among them.
    """
    found = []
    for attempt, attempt_dir in reversed(_attempts(job_dir)):
        if attempt < before_attempt:
            with contextlib.suppress(*_passed_over(skips_unreadable)):
                if any(map(_claims, (attempt_dir, *_step_dirs(attempt_dir)))):
                    break
            found.append(attempt)
    return found


def seal(attempt_dir: Path, *, job_id: str, attempt: int, complete: bool, cut_short: bool = False) -> Checkpoint | None:
    """Turn the files that a script wrote straight into its attempt directory into a checkpoint, and return it.

    Call it after the attempt's last process has ended. `complete` says that no process was killed, `cut_short` that the
    last save did not finish. A second call returns the same checkpoint. Returns None if there is nothing to seal, if
    checkpoints were published in the directory, or if it holds a MANIFEST.json that does not match its files. Symbolic
    links are not followed.
    """
    if not regular.is_folder(attempt_dir) or any(_claims(path) for path in _step_dirs(attempt_dir)):
        return None
    if not _claims(attempt_dir):
        content = _record(attempt_dir, ignore=(*_DRAFTS, f".{MANIFEST}"))
        if not content.files:
            return None
        manifest = manifests.describe(job_id, attempt, None, complete, "supervisor", content)
        if cut_short:
            manifest["complete"] = False
        draft = attempt_dir / f".{MANIFEST}"
        _write_durably(draft, manifests.encoded(manifest))
        draft.rename(attempt_dir / MANIFEST)
        _sync(attempt_dir)
        _sync(attempt_dir.parent)
    try:
        return inspect(attempt_dir)
    except InvalidCheckpoint:
        return None


def retain(job_dir: Path, keep: int = 2, *, trusted: Collection[Path] = ()) -> list[Path]:
    """Remove the checkpoints older than the newest `keep` that verify, and return the removed paths.

    With fewer than `keep` valid ones nothing is removed; a checkpoint whose save was cut short does not count as valid.
    Of `trusted` checkpoints only names and sizes are compared, because the caller has just computed their digests.
    Raises ValueError if `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    found = list(_candidates(job_dir))
    if len(found) <= keep:
        return []
    valid = 0
    for index, path in enumerate(found):
        if valid == keep:
            return [path for path in found[index:] if _remove(path)]
        valid += _is_valid(path, trusted)
    return []


def remove_drafts(attempt_dir: Path) -> None:
    """Remove the drafts that interrupted saves, copies and removals of this job left, and no published checkpoint.

    Call it from the attempt that owns `attempt_dir`, on its first node. Drafts of earlier attempts have no owner any
    more, because an attempt starts only when the one before is dead. A draft of this attempt has no owner if the
    process that began it is dead.
    """
    for path, match in _drafts(attempt_dir.parent):
        if not (path.parent == attempt_dir and match[1] and _is_alive(int(match[1]))):
            _discard(path)


def _drafts(job_dir: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for parent in (job_dir, *(path for _, path in _attempts(job_dir))):
        yield from _subdirectories(parent, _DRAFT)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _valid(paths: Iterable[Path], skips_unreadable: bool = False) -> Iterator[Checkpoint]:
    for path in paths:
        with contextlib.suppress(InvalidCheckpoint, *_passed_over(skips_unreadable)):
            yield verify(path)


def _passed_over(skips_unreadable: bool) -> tuple[type[OSError], ...]:
    return (OSError,) if skips_unreadable else ()


def _candidates(job_dir: Path, before_attempt: int | None = None, skips_unreadable: bool = False) -> Iterator[Path]:
    """Yield every directory that claims to be a checkpoint, newest first.

    A MANIFEST.json beside published checkpoints is the script's own: their attempt's directory is none.
    """
    for attempt, attempt_dir in reversed(_attempts(job_dir)):
        if before_attempt is None or attempt < before_attempt:
            with contextlib.suppress(*_passed_over(skips_unreadable)):
                steps = _step_dirs(attempt_dir)
                yield from steps
                if _claims(attempt_dir) and not any(map(_claims, steps)):
                    yield attempt_dir


def _claims(directory: Path) -> bool:
    """Return whether the directory has a manifest, as one that was published or sealed has. Raises OSError."""
    return regular.is_there(directory / MANIFEST)


def _attempts(job_dir: Path) -> list[tuple[int, Path]]:
    return sorted((int(match[1]), path) for path, match in _subdirectories(job_dir, _ATTEMPT))


def _step_dirs(attempt_dir: Path) -> list[Path]:
    """Return the attempt's published directories, newest first."""
    found = [(int(match[1]), int(match[2] or 0), path) for path, match in _subdirectories(attempt_dir, _STEP)]
    return [path for _, _, path in sorted(found, reverse=True)]


def _subdirectories(directory: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = ((entry, pattern.fullmatch(entry.name)) for entry in entries)
    return [
        (directory / entry.name, match) for entry, match in matches if match and entry.is_dir(follow_symlinks=False)
    ]


def _step_name(step: int) -> str:
    return f"step-{step:012d}"


def _place(draft: Path, attempt_dir: Path, step: int) -> Path:
    """Rename the draft to a name that sorts after every earlier publication of the same step."""
    taken = [int(m[2] or 0) for _, m in _subdirectories(attempt_dir, _STEP) if int(m[1]) == step]
    revision = max(taken, default=-1) + 1
    while True:
        path = attempt_dir / (f"{_step_name(step)}.{revision}" if revision else _step_name(step))
        try:
            draft.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            revision += 1  # another process of the job took the name in between
        else:
            return path


def _record(root: Path, ignore: tuple[str, ...] = ()) -> Content:
    """Digest every regular file below `root` and make it durable, except top-level names that start with `ignore`.

    Raises OSError, before any file is read, if there are too many of them for a manifest.
    """
    manifests.check_room(
        (folder.below(name), status.st_size)
        for folder in _folders(root, ignore)
        for name in folder.files
        if stat.S_ISREG((status := _status(folder, name)).st_mode)
    )
    files, links, folders = list[File](), list[tuple[str, str]](), list[str]()
    for folder in _folders(root, ignore):
        if folder.path:
            os.fsync(folder.descriptor)
        before = len(files)
        for name in folder.files:
            mode = _status(folder, name).st_mode
            if stat.S_ISREG(mode):
                files.append(_record_file(root, folder, name))
            elif stat.S_ISLNK(mode):
                links.append((folder.below(name), os.readlink(name, dir_fd=folder.descriptor)))
        if folder.path and len(files) == before and not folder.folders:
            folders.append(folder.path)
    # A link in the manifest's place leads nowhere, and the manifest replaces it.
    told = (link for link in links if link[0] != MANIFEST and manifests.leads_inside(PurePosixPath(link[0]), link[1]))
    return Content(tuple(files), tuple(told), tuple(folders))


def _folders(root: Path, ignore: tuple[str, ...]) -> Iterator[trees.Folder]:
    """Walk the tree without the top-level names that start with `ignore`."""
    for folder in trees.walk(root):
        if not folder.path:
            folder.folders[:] = [name for name in folder.folders if not name.startswith(ignore)]
            folder.files[:] = [name for name in folder.files if not name.startswith(ignore)]
        yield folder


def _status(folder: trees.Folder, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)


def _record_file(root: Path, folder: trees.Folder, name: str) -> File:
    path = folder.below(name)
    try:
        with open(regular.open_regular(name, dir_fd=folder.descriptor), "rb") as stream:
            os.fsync(stream.fileno())
            digest = _sha256(stream)
            return File(path, os.fstat(stream.fileno()).st_size, digest)
    except OSError as error:
        error.filename = str(root / path)
        raise


def _sha256(stream: io.BufferedReader) -> str:
    digest, buffer = hashlib.sha256(), bytearray(_BUFFER_BYTES)  # hashlib.file_digest needs Python 3.11
    while size := stream.readinto(buffer):
        digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()


def _compare_sizes(path: Path, manifest: Manifest) -> Checkpoint:
    for file in manifest.files:
        found = _size(path / file.path)
        if found != file.bytes:
            raise InvalidCheckpoint(f"{path / file.path}: {found} bytes, {file.bytes} in {MANIFEST}")
    size = sum(file.bytes for file in manifest.files)
    return Checkpoint(path, manifest.step, manifest.attempt, size, manifest.complete, manifest.cut_short)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError as error:
        raise InvalidCheckpoint(f"{path}: missing") from error
    except OSError as error:
        raise manifests.unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCheckpoint(f"{path}: not a regular file")
    return status.st_size


def _is_valid(path: Path, trusted: Collection[Path]) -> bool:
    try:
        found = inspect(path) if path in trusted else verify(path)
    except (InvalidCheckpoint, OSError):
        return False
    return not found.cut_short


def _remove(path: Path) -> bool:
    """Rename the checkpoint to a draft, then delete it, so that a crash half-way never leaves half a checkpoint."""
    doomed = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return False
    _discard(doomed)
    return True


def _discard(draft: Path) -> None:
    """Remove a draft; what cannot be removed now stays until the next attempt removes it."""
    with contextlib.suppress(OSError):
        trees.remove(draft)


def _create(directory: Path) -> None:
    if regular.is_folder(directory):
        return
    _create(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync(directory.parent)


def _write_durably(path: Path, content: bytes) -> None:
    with open(regular.create(path), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_file(name: str, directory: int) -> None:
    with open(regular.open_regular(name, dir_fd=directory), "rb") as stream:
        os.fsync(stream.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
