"""Which node a job gets, and nodes that are taken out of service: two workstations of different kinds."""

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, wait_for

STEPS_ASIDE = ("bash", "-c", "trap 'exit 85' TERM; while :; do sleep 0.05; done")


@pytest.fixture
def lab(cluster: Cluster) -> str:
    """A second node, beside the four A100s of the first, which sees the same checkpoints."""
    marks = ("--label", "zone=lab", "--taint", "gold")
    cluster.add_workstation("lab", "2xH100-80GB", cluster.home / "checkpoints", *marks)
    return "lab"


def test_jobs_go_where_their_needs_are_met_and_leave_a_node_that_is_drained(cluster: Cluster, lab: str) -> None:
    nodes = {node["name"]: node for node in cluster.facts("nodes")}
    [plain] = nodes.keys() - {lab}
    assert (nodes[lab]["labels"], nodes[lab]["taints"], nodes[lab]["drain"]) == ({"zone": "lab"}, ["gold"], None)
    refused = cluster.ebb("submit", "--gpu-type", "h100", "--", *STEPS_ASIDE, code=2)
    assert "--tolerate: every node that would do has a taint that the job does not tolerate: lab (gold)" in refused.err

    first = cluster.submit("--on", plain, "--gpus", "4", "--", *STEPS_ASIDE)
    mover = cluster.submit("--grace", "1s", "--tolerate", "gold", "--compute-capability", "8.0", "--", *STEPS_ASIDE)
    stayer = cluster.submit("--suspend", "none", "--tolerate", "gold", "--select", "zone=a|lab", "--", *STEPS_ASIDE)
    cluster.wait_for_state(stayer, "RUNNING")
    assert cluster.wait_for_state(mover, "RUNNING")["nodes"] == [lab]
    cluster.ebb("cancel", "--now", first, "--wait")

    told = cluster.facts("node", "drain", lab, "--deadline", "2s", "--reason", "new fans")
    assert {job["id"]: job["fate"] for job in told["jobs"]} == {mover: "goes_on", stayer: "stays"}
    wait_for("it has moved", lambda: cluster.show(mover)["nodes"] == [plain])
    cluster.ebb("node", "drain", lab, "--now", "--force", "--reason", "new fans", "--wait")
    assert cluster.show(stayer)["state"] == "FAILED"
    shown = cluster.ebb("nodes").out
    assert "drained" in shown
    assert "new fans" in shown


@pytest.mark.slow
def test_a_drain_outlives_the_master_and_a_path_that_is_missing_is_remembered(
    cluster: Cluster, lab: str, tmp_path: Path
) -> None:
    needed = tmp_path / "data set"
    lacking = cluster.submit("--on", lab, "--tolerate", "gold", "--require-path", str(needed), "--", *STEPS_ASIDE)
    why = wait_for("it was found to be missing", lambda: cluster.show(lacking)["excluded_nodes"])
    assert why == {lab: f"{needed} does not exist here (--require-path)"}
    assert "does not exist here" in cluster.show(lacking)["reason"]
    needed.mkdir()
    cluster.ebb("release", lacking)
    assert cluster.wait_for_state(lacking, "RUNNING")["nodes"] == [lab]

    cluster.ebb("node", "drain", lab, "--now", "--wait")
    cluster.kill(cluster.daemon("master"))
    cluster.up()
    wait_for("it is back", lambda: {node["name"]: node["state"] for node in cluster.facts("nodes")}[lab] == "drained")
    assert "being drained" in cluster.ebb("explain", lacking).out
    cluster.ebb("node", "resume", lab)
    cluster.wait_for_state(lacking, "RUNNING")
    assert cluster.ebb("node", "drain", "nowhere", code=1).err == "ebb: node nowhere does not exist\n"
