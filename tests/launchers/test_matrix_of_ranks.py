"""Launchers of several processes that train together: the whole matrix of who saves and what happens."""

import pytest

from tests.launchers.matrix import RANKS, cells, runs_through

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("nobody")]


@pytest.mark.parametrize("cell", cells(RANKS))
def test_it_is_suspended_preempted_resized_and_killed_as_the_contract_says(cluster, tmp_path, cell):
    runs_through(cluster, cell, tmp_path, cell.events)
