"""A script that cannot save makes room and goes on, on fake GPUs, through everything that is real."""

import json
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, wait_for

COUNT = """
import itertools, time
for step in itertools.count():
    print(f"step {step}", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """One for all tests here."""
    return shared_cluster


def steps(cluster: Cluster, job: str) -> list[int]:
    return [int(line.split()[1]) for line in cluster.log(job).splitlines()]


def counting(cluster: Cluster) -> str:
    job = cluster.submit("--suspend", "swap", "--gpu-mem", "10GiB", "--mem", "64MiB", "--", "python", "-c", COUNT)
    wait_for("it counts", lambda: len(steps(cluster, job)) > 5)
    return job


@pytest.mark.slow
def test_it_makes_room_for_an_urgent_job_and_misses_nothing(idle_cluster: Cluster, tmp_path: Path) -> None:
    cluster = idle_cluster
    cluster.up("1xA100-40GB")
    job = counting(cluster)
    before = cluster.show(job)
    done = tmp_path / "done"
    wait_done = f"import time, pathlib\nwhile not pathlib.Path({str(done)!r}).exists(): time.sleep(0.02)"
    urgent = cluster.submit("--te", "--", "python", "-c", wait_done)
    cluster.wait_for_state(urgent, "RUNNING")
    away = cluster.show(job)
    assert (away["state"], away["gpus"]["allocated"], away["gpu_uuids"]) == ("SUSPENDED", 0, [])
    assert away["suspensions"][0]["note"].startswith("10.0 GiB moved to host memory")
    done.touch()
    back = cluster.wait_for_state(job, "RUNNING")
    counted = len(steps(cluster, job))
    wait_for("it counts on", lambda: len(steps(cluster, job)) > counted + 5)
    counted = steps(cluster, job)
    assert counted == list(range(len(counted)))
    assert (back["pid"], back["attempt"], back["gpu_uuids"]) == (before["pid"], 1, before["gpu_uuids"])
    assert (back["preemptions"], back["restarts"], back["suspensions"][0]["resumed"] is not None) == (1, 0, True)
    cluster.ebb("cancel", "--now", "--wait", job)


def test_it_lies_in_host_memory_while_master_and_agent_die(cluster: Cluster) -> None:
    job = counting(cluster)
    cluster.ebb("suspend", "--wait", job)
    agent = cluster.daemon(cluster.node_name())
    cluster.kill(cluster.daemon("master"))
    cluster.kill(agent)
    cluster.ebb("up")
    assert cluster.wait_for_state(job, "SUSPENDED")["attempt"] == 1
    counted = len(steps(cluster, job))
    cluster.ebb("resume", "--wait", job)
    wait_for("it counts on", lambda: len(steps(cluster, job)) > counted + 5)
    counted = steps(cluster, job)
    assert counted == list(range(len(counted)))


def test_if_the_driver_refuses_the_record_says_so_and_the_job_starts_again(cluster: Cluster) -> None:
    job = counting(cluster)
    faults = cluster.home / "nodes" / cluster.node_name() / "gpus" / "faults.json"
    faults.write_text(json.dumps({"driver": {"checkpoint": 801}}))
    cluster.ebb("suspend", "--wait", job, code=4)
    [suspension] = cluster.show(job)["suspensions"]
    assert suspension["note"].startswith("could not be moved out to host memory: the driver failed to checkpoint")
    assert "could not be moved out" in cluster.ebb("show", job).out
    faults.unlink()
    cluster.ebb("resume", job)
    assert cluster.wait_for_state(job, "RUNNING")["attempt"] == 2


def test_going_down_ends_what_lies_in_host_memory_and_leaves_nothing(cluster: Cluster) -> None:
    job = counting(cluster)
    cluster.ebb("suspend", "--wait", job)
    cluster.ebb("down")
    assert cluster.leftovers() == []
    cluster.up()
    [suspension] = cluster.wait_for_state(job, "SUSPENDED")["suspensions"]
    assert suspension["note"].endswith("; ended while it was swapped out")
