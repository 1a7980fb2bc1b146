"""Real attempts of real launchers and shells, under a real agent and its supervisors."""

from tests.agent.conftest import pytest_pyfunc_call  # noqa: F401
from tests.agent.supervision.conftest import agent, disk  # noqa: F401
