"""Nodes are borrowed from Kubernetes: a real master, supplier and pilots, in pods that are processes here."""

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import wait_for
from tests.faults import loans
from tests.pods.borrowed import Borrowed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def borrowed() -> Iterator[Borrowed]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        made = Borrowed(Path(folder))
        try:
            yield made
        finally:
            made.close()


def test_a_pod_comes_with_a_job_and_goes_when_nobody_needs_it(borrowed: Borrowed) -> None:
    job = borrowed.submit()
    borrowed.cluster.wait_for_state(job, "RUNNING", seconds=60)
    assert list(borrowed.pods.pods) == ["ebb-k8s-1"]
    invitation = borrowed.pods.secrets["ebb-k8s-1"]["stringData"]["invitation"]
    assert invitation not in json.dumps(borrowed.pods.pods)
    borrowed.cluster.ebb("cancel", "--wait", job)
    wait_for("its loan has ended", lambda: borrowed.loans() == {"k8s-1": "ended"}, seconds=120)
    wait_for("no pod and no secret is left", lambda: not borrowed.pods.pods and not borrowed.pods.secrets, seconds=60)
    wait_for(
        "its node is forgotten",
        lambda: "k8s-1" not in {node["name"] for node in borrowed.cluster.facts("nodes", "--all")},
    )
    assert "event=leaving why=idle" in borrowed.cluster.ebb("supply", "logs", "k8s-1").out


def test_a_pod_that_is_preempted_saves_and_its_job_goes_on_in_another_one(borrowed: Borrowed) -> None:
    job = borrowed.submit()
    borrowed.cluster.wait_for_state(job, "RUNNING", seconds=60)
    wait_for("it has begun", lambda: "began at 0" in borrowed.cluster.log(job))
    borrowed.pods.evict("ebb-k8s-1")
    wait_for("it runs in another pod", lambda: borrowed.nodes_of(job) == ["k8s-2"], seconds=120)
    wait_for("it has said where it began", lambda: borrowed.cluster.log(job).count("began at") == 2)
    [first, second] = [line.split()[-1] for line in borrowed.cluster.log(job).splitlines()]
    assert int(first) == 0 < int(second)
    [left, _] = borrowed.cluster.show(job)["attempts"]
    assert (left["nodes"], left["outcome"]) == (["k8s-1"], "checkpointed and stepped aside")


def test_an_end_that_the_lender_moves_reaches_the_jobs(borrowed: Borrowed) -> None:
    job = borrowed.submit("--grace", "5s")
    borrowed.cluster.wait_for_state(job, "RUNNING", seconds=60)
    wait_for("it has begun", lambda: "began at 0" in borrowed.cluster.log(job))
    borrowed.pods.started_earlier("ebb-k8s-1", 540.0)  # of ten minutes
    wait_for("it runs in another pod", lambda: borrowed.nodes_of(job) == ["k8s-2"], seconds=120)
    [left, _] = borrowed.cluster.show(job)["attempts"]
    assert (left["nodes"], left["outcome"]) == (["k8s-1"], "checkpointed and stepped aside")


def test_a_pod_that_is_killed_proves_that_its_job_is_dead(borrowed: Borrowed) -> None:
    job = borrowed.submit()
    borrowed.cluster.wait_for_state(job, "RUNNING", seconds=60)
    borrowed.pods.kill("ebb-k8s-1")
    wait_for("it runs in another pod", lambda: borrowed.nodes_of(job) == ["k8s-2"], seconds=180)


def test_a_gang_gets_its_pods_together_or_waits(borrowed: Borrowed) -> None:
    job = borrowed.submit("--nodes", "2", "--gpus", "4")
    borrowed.cluster.wait_for_state(job, "RUNNING", seconds=120)
    assert sorted(borrowed.nodes_of(job)) == ["k8s-1", "k8s-2"]


def test_a_supplier_that_is_killed_is_followed_by_one_that_goes_on(borrowed: Borrowed) -> None:
    job = borrowed.submit()
    borrowed.cluster.wait_for_state(job, "RUNNING", seconds=60)
    borrowed.supplier.kill()
    borrowed.supplier.wait()
    borrowed.supplier = borrowed.supply()
    second = borrowed.submit("--gpus", "2")
    borrowed.cluster.wait_for_state(second, "RUNNING", seconds=120)
    assert sorted(borrowed.pods.pods) == ["ebb-k8s-1", "ebb-k8s-2"]
    assert borrowed.nodes_of(job) == ["k8s-1"]


def test_whoever_is_killed_no_job_runs_twice_and_no_pod_is_left() -> None:
    seed = random.randrange(2**24)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        done, truth, _ = loans.run(8, seed, Path(folder))
    assert (done.total(), truth.wrong) == (8, [])
