"""One day, which all tests here look at: under the policies for shares and priorities, and once more under `tide`."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import a_home
from tests.e2e.day.evidence import Evidence, collect
from tests.e2e.day.playing import Player
from tests.e2e.day.script import CONFIGS, write

SEED = int(os.environ.get("EBB_SEED", "6"))


@pytest.fixture(scope="session", params=list(CONFIGS))
def day(request: pytest.FixtureRequest) -> Iterator[Evidence]:
    """A day of 200 jobs, played to its end."""
    with a_home() as cluster:
        player = Player(cluster, write(SEED), request.param)
        player.bring_up()
        player.play()
        yield collect(player)
