"""A cluster that borrows its nodes from an emulated Kubernetes, whose pods are processes of this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.e2e.cluster import ANY_ACCOUNT, EBB, Cluster
from tests.pods.fake import FakeKubernetes
from tests.ports import free_ports

MOST_NODES: Final = 2

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
        self.cluster.ebb("master", "init", "--host", "localhost", "--port", str(free_ports(2)[0]))
        root = folder / "root"
        root.mkdir(mode=0o700)
        supply = {
            "kind": "kubernetes", "pool": "own", "max_nodes": MOST_NODES, "gpus_per_node": 2, "gpu_type": "A100-40GB",
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
