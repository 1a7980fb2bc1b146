"""Two pools on one machine, from the configuration file to a job that is moved from one to the other."""

from tests.e2e.cluster import wait_for
from tests.e2e.conftest import a_home

SLEEP = ("sleep", "600")
CONFIG = """
[pools.big]
policy = "priority"
fitting = "worst"
"""


def test_jobs_stay_in_their_pool_and_are_moved_by_the_user() -> None:
    with a_home() as cluster:
        (cluster.home / "ebbtide.toml").write_text(CONFIG)
        cluster.up("1xRTX4090", "--node", "small")
        cluster.start_workstation("large", "2xA100-40GB", cluster.home / "checkpoints", "--pool", "big")
        wait_for("both are up", lambda: {"small", "large"} <= cluster.nodes_up())
        assert {node["name"]: node["pool"] for node in cluster.facts("nodes")} == {"small": "default", "large": "big"}
        assert "Pool big: priority, worst fit; 2 of 2 GPUs idle" in cluster.ebb("nodes").out

        first = cluster.submit("--", *SLEEP)
        assert cluster.wait_for_state(first, "RUNNING")["nodes"] == ["small"]
        second = cluster.submit("--", *SLEEP)
        assert cluster.show(second)["reason"] == "waiting for 1 GPU in pool default"
        refused = cluster.ebb("submit", "--pool", "huge", "--", *SLEEP, code=2)
        assert refused.err == "ebb: --pool: there is no pool 'huge': there are default, big\n"

        cluster.ebb("set", first, "--pool", "big")
        moved = wait_for("it runs there", lambda: running_on(cluster, first, "large"))
        assert (moved["pool"], moved["attempt"]) == ("big", 2)
        assert cluster.wait_for_state(second, "RUNNING")["nodes"] == ["small"]
        assert "pool default → big" in cluster.ebb("story", first).out
        cluster.ebb("cancel", "--now", "--wait", first, second)


def running_on(cluster, job, node):
    shown = cluster.show(job)
    return shown if shown["state"] == "RUNNING" and shown["nodes"] == [node] else None
