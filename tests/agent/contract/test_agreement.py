"""The agent imports neither core nor master, so it repeats some of their figures."""

from ebbtide_agent.gpu_use import idle_use
from ebbtide_agent.supervisor.leaving import ending
from ebbtide_core.job import outcome
from ebbtide_master.nodes import quarantine


def test_a_supervisor_and_the_core_read_the_same_exit_codes_as_leaving() -> None:
    assert ending.LEAVING == outcome.SUSPENDED_EXITS


def test_agents_and_the_master_call_the_same_memory_released() -> None:
    assert idle_use.TOLERANCE_BYTES == quarantine.TOLERANCE_BYTES
