"""Nodes are borrowed from Kubernetes: a real master, supplier and pilots, in pods that are processes here."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import ANY_ACCOUNT, EBB, Cluster, wait_for
from tests.e2e.test_between_machines import free_ports
from tests.pods.fake import FakeKubernetes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# It saves how far it is when it is asked to leave, and goes on from there.
COUNTS = """
import ebbtide, time
job, count = ebbtide.job(), 0
if state := job.load_checkpoint():
    count = state.step
print("began at", count, flush=True)
while True:
    count += 1
    time.sleep(0.05)
    if job.should_suspend():
        job.suspend(lambda directory: (directory / "saved").touch(), count)
"""


class Borrowed:
    """A cluster with TLS and without GPUs, a supply of pods, and its supplier."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "login")
        self.pods = FakeKubernetes(folder, kubelets=True, environment=dict(self.cluster.environment))
        self.cluster.environment |= {"KUBECONFIG": str(self.pods.configuration())}
        self.cluster.environment.pop("KUBERNETES_SERVICE_HOST", None)
        self.cluster.ebb("master", "init", "--host", "localhost", "--port", str(free_ports()))
        root = folder / "root"
        root.mkdir(mode=0o700)
        supply = {
            "kind": "kubernetes", "pool": "own", "max_nodes": 2, "gpus_per_node": 2, "gpu_type": "A100-40GB",
            "gpu_mem": "40GiB", "cpus": 2, "mem": "4GiB", "time": "10m", "after": "0s", "idle": "8s", "notice": "20s",
            "image": "registry/ebbtide:1", "checkpoint_root": str(root),
            "agent": ["--gpus", "2xA100-40GB", *ANY_ACCOUNT],
        }  # fmt: skip
        lines = [f"{field} = {json.dumps(value)}" for field, value in supply.items()]
        lines.append(f'container = {{ volumeMounts = [{{ name = "data", mountPath = "{root}" }}] }}')
        lines.append('pod.volumes = [{ name = "data", persistentVolumeClaim = { claimName = "ebbtide" } }]')
        lines.append(f"pod.securityContext = {{ runAsUser = {os.getuid() or 1000} }}")
        (self.cluster.home / "supply.toml").write_text("\n".join(["[supply.k8s]", *lines]) + "\n")
        (self.cluster.home / "ebbtide.toml").write_text("[pools.own]\n")
        self.cluster.up("none", "--node", "login")
        self.supplier = self.supply()

    def supply(self) -> subprocess.Popen[bytes]:
        with (self.folder / "supplier.log").open("ab") as log:
            command = [*EBB, "supply", "run", "k8s"]
            return subprocess.Popen(command, env=self.cluster.environment, stdout=log, stderr=log)

    def submit(self, *options: str) -> str:
        script = self.folder / "counts.py"
        script.write_text(COUNTS)
        return self.cluster.submit("--pool", "own", "--gpus", "1", *options, "--", sys.executable, str(script))

    def loans(self) -> dict[str, str]:
        [supply] = self.cluster.facts("supply", "ls")
        return {loan["id"]: loan["phase"] for loan in supply["loans"]}

    def nodes_of(self, job: str) -> list[str]:
        shown = self.cluster.show(job)
        return shown["nodes"] if shown["state"] == "RUNNING" else []

    def close(self) -> None:
        self.supplier.send_signal(signal.SIGTERM)
        assert self.supplier.wait(30) == 0
        self.cluster.close()
        self.pods.close()


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
    nodes = {node["name"] for node in borrowed.cluster.facts("nodes", "--all")}
    wait_for("its node is forgotten", lambda: "k8s-1" not in nodes)
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
