"""Killing the agent, the master or both never touches a running job (promises P1, P2, P3 and P5)."""

import random
import re
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import Cluster, alive, wait_for

WITNESS = Path(__file__).with_name("witness.py")
FOR_EVER = "0"
"""Steps that the witness makes until it has made enough."""


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """One for all tests here."""
    return shared_cluster


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_at_random_moments_leave_the_job_alone(cluster: Cluster, tmp_path: Path, kills: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    node = cluster.node_name()
    job = cluster.submit("--", sys.executable, str(WITNESS), str(tmp_path), FOR_EVER, "7")
    pid = wait_for("the job runs", lambda: cluster.show(job)["pid"])
    process = psutil.Process(pid)
    for victims in dice.choices([["master"], [node], ["master", node]], k=kills):
        time.sleep(dice.uniform(0.0, 0.4))  # the random moment itself
        for victim in victims:
            cluster.kill(cluster.daemon(victim))
        cluster.up()
        assert alive(process), f"killing {victims} ended the job"
    (tmp_path / "enough").touch()
    shown = cluster.wait_for_state(job, "COMPLETED", "FAILED", "SUSPENDED", "CANCELLED")
    assert (shown["state"], shown["exit_code"], shown["attempt"]) == ("FAILED", 7, 1)
    assert shown["attempts"][0]["pid"] == pid
    assert not (tmp_path / "overlap").exists()
    log = cluster.log(job)
    assert f"pid {pid} attempt 1" in log
    steps = [int(step) for step in re.findall(r"^step (\d+)$", log, re.MULTILINE)]
    assert steps == list(range(len(steps)))
    assert steps


def test_a_job_that_ends_while_nobody_watches_is_reported_with_its_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.node_name()
    job = cluster.submit("--", sys.executable, str(WITNESS), str(tmp_path), FOR_EVER, "3")
    pid = wait_for("the job runs", lambda: cluster.show(job)["pid"])
    process = psutil.Process(pid)
    for victim in ("master", node):
        cluster.kill(cluster.daemon(victim))
    (tmp_path / "enough").touch()
    wait_for("the job has ended", lambda: not alive(process))
    cluster.up()
    shown = cluster.wait_for_state(job, "FAILED")
    assert shown["exit_code"] == 3


def test_every_acknowledged_job_is_there_after_the_master_was_killed(cluster: Cluster) -> None:
    acknowledged = [cluster.submit("--hold", "--", "true") for _ in range(5)]
    cluster.kill(cluster.daemon("master"))
    cluster.up()
    assert {job["id"] for job in cluster.facts("ls")} == set(acknowledged)


def test_down_suspends_and_up_resumes(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("--grace", "5s", "--", sys.executable, str(WITNESS), str(tmp_path), "0", "0")
    wait_for("the job runs", lambda: cluster.show(job)["pid"])
    cluster.ebb("down")
    assert cluster.leftovers() == []
    cluster.up()
    (tmp_path / "enough").touch()
    shown = cluster.wait_for_state(job, "COMPLETED")
    assert shown["attempt"] == 2
    assert [s["reason"] for s in shown["suspensions"]] == ["the cluster is going down"]
    assert not (tmp_path / "overlap").exists()
