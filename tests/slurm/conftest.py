"""One Slurm for all tests of this folder."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.rig import Slurm, a_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        Path(folder).chmod(0o755)
        with a_slurm(Path(folder)) as slurm:
            yield slurm
