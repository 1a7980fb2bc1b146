"""One day, which all tests here look at."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import a_home
from tests.e2e.day.evidence import Evidence, collect
from tests.e2e.day.playing import Player
from tests.e2e.day.script import write

SEED = int(os.environ.get("EBB_SEED", "6"))


@pytest.fixture(scope="session")
def day() -> Iterator[Evidence]:
    """A day of 200 jobs, played to its end."""
    with a_home() as cluster:
        player = Player(cluster, write(SEED))
        player.bring_up()
        player.play()
        yield collect(player)
