"""Somebody computes past the cluster: their GPU is left alone until they have left."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_agent.processes import procfs

from tests.e2e.cluster import Cluster, wait_for

GIB = 2**30


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of no job."""
    process = subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def put_on_gpu(gpus: Path, process: subprocess.Popen[bytes], uuid: str) -> None:
    """What a driver would see."""
    started = procfs.read_stat(process.pid).starttime
    draft = gpus / ".draft"
    draft.write_text(json.dumps({"pid": process.pid, "starttime": started, "gpus": {uuid: 10 * GIB}}))
    draft.replace(gpus / "processes" / f"{process.pid}.json")


def test_nothing_new_is_placed_beside_a_foreign_process_and_its_gpu_is_used_once_it_left(
    idle_cluster: Cluster, stranger: subprocess.Popen[bytes]
) -> None:
    cluster = idle_cluster
    cluster.up("2xRTX4090")
    node = cluster.node_name()

    def first_gpu() -> dict:
        return cluster.facts("nodes")[0]["gpus"][0]

    uuid = first_gpu()["uuid"]
    put_on_gpu(cluster.home / "nodes" / node / "gpus", stranger, uuid)
    [found] = wait_for("the foreign process is known", lambda: first_gpu()["foreign"])
    assert (found["pid"], found["mem_bytes"]) == (stranger.pid, 10 * GIB)

    running = cluster.submit("--", "sleep", "600")
    waiting = cluster.submit("--", "sleep", "600")
    shown = cluster.wait_for_state(running, "RUNNING")
    assert uuid not in shown["gpu_uuids"]
    whose = f"GPU 0 of node {node} is used by {found['user']}'s {found['command']} (10 GiB)"
    assert cluster.show(waiting)["reason"] == f"waiting for 1 GPU: {whose}"
    assert "GPU 0 is used by" in cluster.ebb("explain", waiting).out

    stranger.kill()
    stranger.wait()
    shown = cluster.wait_for_state(waiting, "STARTING", "RUNNING")
    assert shown["gpu_uuids"] == [uuid]
    cluster.ebb("cancel", running, waiting, "--now")
