"""A machine goes down on purpose: its jobs save and leave first, and come back with it."""

import signal

import pytest

from tests.e2e.cluster import Cluster

STEPS_ASIDE = ("bash", "-c", "trap 'exit 85' TERM; while :; do sleep 0.05; done")


@pytest.mark.slow
def test_jobs_leave_before_a_reboot_and_go_on_when_the_agent_is_back(cluster: Cluster) -> None:
    job = cluster.submit("--gpus", "1", "--", *STEPS_ASIDE)
    cluster.wait_for_state(job, "RUNNING")
    name = cluster.node_name()
    assert cluster.ebb("node", "leave").out == f"Nothing runs here any more: {name}.\n"
    assert cluster.show(job)["state"] == "SUSPENDED"
    [node] = cluster.facts("nodes")
    assert (node["state"], node["drain"]["user"]) == ("drained", "the node itself")
    agent = cluster.daemon(name)
    agent.send_signal(signal.SIGTERM)
    agent.wait(20)
    cluster.up()
    assert cluster.wait_for_state(job, "RUNNING")["attempt"] == 2

    stubborn = cluster.submit("--gpus", "1", "--suspend", "none", "--", *STEPS_ASIDE)
    cluster.wait_for_state(stubborn, "RUNNING")
    assert cluster.ebb("node", "leave", "--within", "4s", code=1).err.startswith("ebb: node leave: ")
    cluster.ebb("node", "leave", "--stay")
    assert cluster.wait_for_state(job, "RUNNING")["attempt"] == 3
    assert cluster.show(stubborn)["attempt"] == 1


def test_it_is_said_on_the_machine_of_an_agent(idle_cluster: Cluster) -> None:
    failed = idle_cluster.ebb("node", "leave", code=1)
    assert failed.err == f"ebb: node leave: no agent runs in EBB_HOME {idle_cluster.home}\n"
