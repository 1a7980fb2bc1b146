"""Files to read, and real traces where there are any."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

File = Callable[..., Path]


@pytest.fixture
def file(tmp_path: Path) -> File:
    """Writes a file from its lines, packed if its name says so."""

    def write(*lines: str, name: str = "jobs.csv") -> Path:
        path = tmp_path / name
        content = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


@pytest.fixture
def traces() -> Path:
    """The folder of real traces, which are not part of the project."""
    return Path(os.environ["EBB_TRACES"])
