"""A node of root's, whose jobs run as accounts that every system has."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide import trees

from tests.agent.accounts.conftest import disk, somebody
from tests.agent.supervisor.conftest import agent


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Empty in the end: what is deep cannot be removed by pytest."""
    yield tmp_path
    for path in tmp_path.iterdir():
        if path.is_dir() and not path.is_symlink():
            trees.remove(path)


__all__ = ["agent", "disk", "somebody"]
