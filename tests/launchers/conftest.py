"""Real attempts of real launchers and shells, under a real agent and its supervisors, or through a whole cluster."""

from collections.abc import Iterator

import pytest

from tests.agent.supervisor.conftest import agent, disk  # noqa: F401
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import shared_home  # noqa: F401
from tests.launchers.matrix import GPUS, PATIENCE_S


@pytest.fixture(scope="module")
def cluster(shared_home: Cluster) -> Cluster:  # noqa: F811
    """One for all tests of a module, in which everybody may be preempted at once and nobody grows by itself."""
    options = ("--policy-option", "min_run_s=0", "--policy-option", "resize_after_s=1000000")
    shared_home.ebb("up", "--gpus", f"{GPUS}xA100-40GB", *options, seconds=PATIENCE_S)
    return shared_home


@pytest.fixture
def nobody(cluster: Cluster) -> Iterator[None]:
    """No job is left behind by a test that failed."""
    yield
    cluster.cancel_all()
