"""Describes the files of a checkpoint in its manifest, and reads what a manifest describes."""

import errno
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ebbtide import regular

MANIFEST = "MANIFEST.json"
FORMAT = 1
MANIFEST_BYTES = 64 * 1024 * 1024
"""Largest manifest that is read, in bytes; a larger file makes the checkpoint invalid."""

_OWN_DIGEST = "manifest_sha256"
# Why a file that is missing, a link, a pipe, a device or too large cannot be read; this does not pass.
_DAMAGE = frozenset(
    (
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV),
        *(errno.EFBIG, errno.E2BIG, errno.ENAMETOOLONG),
    )
)


class InvalidCheckpoint(Exception):
    """The files on disk are not the checkpoint that their manifest describes; the message names what is wrong."""


@dataclass(frozen=True, slots=True)
class File:
    """One file that a manifest lists; ``path`` is relative to the checkpoint's directory."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Content:
    """What is in a checkpoint's directory, by paths relative to that.

    Of links, those are named that lead to a place in the directory, each with what it holds, and of folders, those
    without files. Nobody verifies either: they are there for a copy.
    """

    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says of its checkpoint."""

    step: int | None
    attempt: int
    complete: bool
    cut_short: bool
    content: Content

    @property
    def files(self) -> tuple[File, ...]:
        return self.content.files


# What a manifest needs for a file, beside its path and its size, and between two of them.
_REST_OF_FILE_BYTES = len(json.dumps(asdict(File("", 0, "0" * 64)))) - len(json.dumps("")) - len("0")
_SEPARATOR = ", "


def describe(
    job_id: str, attempt: int, step: int | None, complete: bool, sealed_by: str, content: Content
) -> dict[str, Any]:
    """Return what a manifest says."""
    rest = {"links": dict(content.links), "folders": list(content.folders)}
    return {
        "format": FORMAT,
        "job_id": job_id,
        "attempt": attempt,
        "step": step,
        "complete": True if complete else "unknown",
        "sealed_by": sealed_by,
        "files": [asdict(file) for file in content.files],
        "created_at": time.time(),
        **{name: found for name, found in rest.items() if found},
    }


def digested(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest with a digest of itself, because nothing else would notice a flipped bit in `step`."""
    return manifest | {_OWN_DIGEST: hashlib.sha256(json.dumps(manifest).encode()).hexdigest()}


def encoded(manifest: dict[str, Any]) -> bytes:
    """Return the manifest's file, with a digest of itself. Raises OSError if it would be too large to be read.

    What it says of links and of folders without files is left out if it is too large with that.
    """
    for left_out in ((), ("links", "folders")):
        said = {name: value for name, value in manifest.items() if name not in left_out}
        content = json.dumps(digested(said)).encode()
        if len(content) <= MANIFEST_BYTES:
            return content
    raise _too_large(len(manifest["files"]), len(content))


def check_room(sizes: Iterable[tuple[str, int]]) -> None:
    """Raise OSError if no manifest of files with these paths and sizes could be read, whatever is in them."""
    files, size = 0, -len(_SEPARATOR)
    for path, length in sizes:
        files += 1
        size += len(json.dumps(path)) + _REST_OF_FILE_BYTES + len(str(length)) + len(_SEPARATOR)
    if size > MANIFEST_BYTES:
        raise _too_large(files, size)


def _too_large(files: int, size: int) -> OSError:
    reason = f"its {MANIFEST} would have {size} bytes, above {MANIFEST_BYTES}"
    return OSError(errno.EFBIG, f"{files} files are too many for a checkpoint: {reason}")


def read(path: Path) -> Manifest:
    """Return the manifest of the checkpoint in this directory. Raises InvalidCheckpoint, and OSError (`unreadable`)."""
    try:
        raw = json.loads(regular.read_regular(path / MANIFEST, MANIFEST_BYTES))
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, expected {FORMAT}")
        without = {name: value for name, value in raw.items() if name != _OWN_DIGEST}
        if raw.get(_OWN_DIGEST, "") not in ("", digested(without)[_OWN_DIGEST]):  # older manifests have none
            raise ValueError("its own SHA-256 digest is another")
        files = tuple(File(str(f["path"]), int(f["bytes"]), str(f["sha256"])) for f in raw["files"])
        step = None if raw["step"] is None else int(raw["step"])
        complete, cut_short = raw["complete"] is True, raw["complete"] is False
        links = tuple((str(path), str(target)) for path, target in raw.get("links", {}).items())
        content = Content(files, links, tuple(map(str, raw.get("folders", ()))))
        manifest = Manifest(step, int(raw["attempt"]), complete, cut_short, content)
    except FileNotFoundError as error:
        raise InvalidCheckpoint(f"{path}: no {MANIFEST}") from error
    except OSError as error:
        raise unreadable(path / MANIFEST, error) from error
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path / MANIFEST}: not a manifest: {error!r}") from error
    if not files:
        raise InvalidCheckpoint(f"{path / MANIFEST}: lists no file")
    if (leaving := _leaving(content)) is not None:
        raise InvalidCheckpoint(f"{path / MANIFEST}: {leaving!r} leaves the checkpoint")
    return manifest


def _leaving(content: Content) -> str | None:
    """Return a path that is not below the checkpoint, or may not be once its links are there; None if there is none."""
    links = {PurePosixPath(path): target for path, target in content.links}
    others = [PurePosixPath(path) for path in (*(file.path for file in content.files), *content.folders)]
    for path in (*others, *links):
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in str(path):
            return str(path)
        if links and not links.keys().isdisjoint(path.parents):
            return str(path)
    if links and not links.keys().isdisjoint(others):
        return str(next(path for path in others if path in links))
    return next((str(path) for path, target in links.items() if not leads_inside(path, target)), None)


def leads_inside(link: PurePosixPath, target: str) -> bool:
    """Return whether a link at this path below a directory leads to another place below it, whatever others lead to."""
    words = PurePosixPath(target).parts
    ups = next((index for index, word in enumerate(words) if word != ".."), len(words))
    is_relative = words[:1] != ("/",) and words[:1] != ("//",) and "\0" not in target
    return bool(words) and is_relative and ups < len(link.parts) and ".." not in words[ups:]


def unreadable(path: Path, error: OSError) -> InvalidCheckpoint | OSError:
    """Return what to raise for a file or directory of a checkpoint that cannot be read; the message names it.

    InvalidCheckpoint says that the file itself is the reason. Any other reason, such as EIO, ESTALE or EACCES, may pass
    or be another one on another node, and stays an OSError.
    """
    if error.errno in _DAMAGE:
        return InvalidCheckpoint(f"{path}: cannot be read: {error.strerror}")
    return OSError(error.errno, error.strerror, str(path))
