"""One Slurm at a time for all tests of this folder."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import wait_for
from tests.e2e.conftest import a_home
from tests.slurm.borrower import Borrower, a_borrower
from tests.slurm.lent import Loans
from tests.slurm.rig import Slurm, a_slurm


@pytest.fixture(scope="session")
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """As a test's parameter says that it is set up, or as it usually is."""
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        Path(folder).chmod(0o755)
        with a_slurm(Path(folder), **getattr(request, "param", {})) as slurm:
            yield slurm


@pytest.fixture
def loans(slurm: Slurm) -> Iterator[Loans]:
    with a_home() as cluster:
        cluster.up_for_people()
        yield Loans(cluster, slurm)
        slurm.try_command("scancel", "--user", "root")
        wait_for("Slurm has all jobs back", lambda: not slurm.command("squeue", "-h").strip())


@pytest.fixture
def borrower(slurm: Slurm) -> Iterator[Borrower]:
    with a_borrower(slurm) as borrower:
        yield borrower
