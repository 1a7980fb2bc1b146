"""A node with attempts, and a client's end of its channels without a master between."""

from tests.agent.supervisor.conftest import agent, disk

__all__ = ["agent", "disk"]
