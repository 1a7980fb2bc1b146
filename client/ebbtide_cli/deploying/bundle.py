"""Read what a bundle says about itself: the file that ``make bundle`` writes."""

import hashlib
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_cli.errors import USAGE, Failure

_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+]{0,40}")
_PYTHON: Final = re.compile(r"3\.[0-9]{1,2}")
_FOLDER: Final = re.compile(r"ebbtide-[^/]*-py3\.[0-9]+-(?P<machine>[a-z0-9_]+)")
_SMALL_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on this machine; ``machine`` is the architecture of its wheels, empty if its name does not say."""

    path: Path
    version: str
    python: str
    machine: str
    digest: str
    size_bytes: int

    @property
    def build(self) -> str:
        """The name of the directory that it is installed in: another content has another name."""
        return self.digest[:16]

    @classmethod
    def read(cls, path: Path) -> "Bundle":
        """Read and check the file. Raises `Failure`."""
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            with tarfile.open(path, "r:gz") as archive:
                (folder,) = {member.name.split("/")[0] for member in archive}
                version, python = (_text(archive, f"{folder}/{name}") for name in ("VERSION", "PYTHON"))
                archive.getmember(f"{folder}/install.sh")
        except OSError as error:
            raise _refused(path, error.strerror or str(error)) from None
        except (tarfile.TarError, EOFError, KeyError, ValueError):
            raise _refused(path, "is no bundle as 'make bundle' writes it") from None
        if not (_VERSION.fullmatch(version) and _PYTHON.fullmatch(python)):
            raise _refused(path, "names no version of Ebbtide and of Python")
        machine = found["machine"] if (found := _FOLDER.fullmatch(folder)) else ""
        return cls(path, version, python, machine, digest, path.stat().st_size)


def _text(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(name)
    return file.read(_SMALL_BYTES).decode().strip()


def _refused(path: Path, why: str) -> Failure:
    return Failure(f"deploy: --bundle: {path}: {why}", USAGE)
