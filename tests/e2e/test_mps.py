"""Two jobs share a GPU through an MPS server, which fails; both go on, and nothing is charged to them."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

from tests.e2e.cluster import REPOSITORY, Cluster, wait_for

COMPUTE = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/server")
server.sendall(b"connect\\n")
print(server.recv(100).decode(), flush=True)
server.recv(100)
raise SystemExit("CUDA error")
"""


def program(folder: Path) -> str:
    path = folder / "nvidia-cuda-mps-control"
    stand_in = REPOSITORY / "tests" / "agent" / "mps" / "stand_in.py"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(stand_in))} "$@"\n')
    path.chmod(0o700)
    return str(path)


def record(cluster: Cluster) -> dict[str, object]:
    [path] = (cluster.home / "nodes" / "ws" / "mps").glob("*.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_the_failure_of_a_server_interrupts_its_clients_and_charges_nobody(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = idle_cluster
    cluster.up("1xA100-40GB", "--node", "ws", "--mps", program(tmp_path))
    jobs = [cluster.submit("--gpus", "1/4", "--", "python", "-S", "-c", COMPUTE) for _ in range(2)]
    for job in jobs:
        wait_for("it is a client", lambda job=job: "connected" in cluster.log(job))
        assert cluster.wait_for_state(job, "RUNNING")["attempts"][0]["sharing"] == "mps"
    assert "mps, GPU memory limited by MPS" in cluster.ebb("show", jobs[0]).out
    before = record(cluster)
    os.kill(before["servers"][0]["pid"], signal.SIGKILL)  # type: ignore[index]
    for job in jobs:
        wait_for("it is a client again", lambda job=job: cluster.log(job).count("connected") == 2)
        shown = cluster.wait_for_state(job, "RUNNING")
        assert (shown["attempt"], shown["restarts"], shown["retries"]) == (2, 1, 0)
        assert "failed (its server died); it resumes from its last checkpoint" in shown["attempts"][0]["outcome"]
    assert record(cluster) != before

    def told() -> tuple[bool, bool]:
        [gpu] = cluster.facts("nodes")[0]["gpus"]
        return gpu["healthy"], gpu["mps"]

    wait_for("the master hears that the GPU is shared again", lambda: told() == (True, True))
