"""A job that uses more host memory than it asked for, as its user sees it."""

import json

from tests.e2e.cluster import Cluster

TAKES = "import time; kept = b'x' * (256 << 20); time.sleep(600)"


def test_who_uses_more_memory_than_it_asked_for_has_failed_and_is_told_why(cluster: Cluster) -> None:
    job = cluster.submit("--cpu-only", "--mem", "64MiB", "--", "python", "-c", TAKES)
    over = cluster.wait_for_state(job, "FAILED", "COMPLETED")
    why = "signal SIGKILL (it used more than its --mem 64 MiB)"
    assert (over["state"], over["exit_code"], over["reason"]) == ("FAILED", 137, f"failed with {why}")
    assert why in cluster.ebb("show", job).out
    assert f"attempt 1 ended: {why}" in cluster.ebb("story", job).out
    [node] = json.loads(cluster.ebb("nodes", "--json").out)
    assert (node["cpu_limits"], node["mem_limits"]) in (("enforced", "enforced"), ("booked", "watched"))
