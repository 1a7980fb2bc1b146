"""Real attempts of the scripts in this folder, under a real agent and its supervisors."""

from tests.agent.supervisor.conftest import agent, disk  # noqa: F401
