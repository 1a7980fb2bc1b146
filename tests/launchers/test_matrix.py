"""Some cells of the matrix, of which `make matrix` runs the rest."""

import pytest

from tests.launchers.matrix import BASH, PLAIN, TIMEOUT, Cell, runs_through

pytestmark = pytest.mark.usefixtures("nobody")


@pytest.mark.parametrize(
    "cell", [Cell(PLAIN, "sdk", False), Cell(BASH, "own", False), Cell(TIMEOUT, "sdk", False)], ids=str
)
def test_it_is_suspended_saves_and_goes_on_where_it_was(cluster, tmp_path, cell):
    runs_through(cluster, cell, tmp_path, ("suspend",))
