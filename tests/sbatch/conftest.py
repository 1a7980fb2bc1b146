"""The same master and the same way to run `ebb` as the client's other tests have."""

from tests.client.conftest import ebb, home, master

__all__ = ["ebb", "home", "master"]
