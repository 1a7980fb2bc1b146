"""Clusters that come and go with a test, and leave nothing behind."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster


@contextmanager
def a_home() -> Iterator[Cluster]:
    """A home without daemons, from which everything is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        cluster = Cluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def idle_cluster() -> Iterator[Cluster]:
    """A home without daemons."""
    with a_home() as cluster:
        yield cluster


@pytest.fixture
def cluster(idle_cluster: Cluster) -> Cluster:
    """A cluster on this machine with four fake GPUs."""
    idle_cluster.up("4xA100-40GB")
    return idle_cluster


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Cluster]:
    """A home for all tests of a module."""
    with a_home() as cluster:
        yield cluster


@pytest.fixture
def shared_cluster(shared_home: Cluster) -> Iterator[Cluster]:
    """A cluster on this machine with four fake GPUs, and without jobs; its tests may kill it, and count no jobs."""
    shared_home.up("4xA100-40GB")
    yield shared_home
    shared_home.cancel_all()
