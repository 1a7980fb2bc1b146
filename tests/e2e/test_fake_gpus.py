"""Fake GPUs are broken on purpose under a whole cluster, and what runs on the others goes on."""

from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster, alive, wait_for

GIB = 1 << 30
HOLD = """
import ebbtide, time
print(f"held {ebbtide.fake_allocate(5 << 30)}", flush=True)
try:
    ebbtide.fake_allocate(100 << 30)
except RuntimeError as error:
    print(error, flush=True)
time.sleep(600)
"""


def gpus(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.facts("nodes")[0]["gpus"]
    return found


def asking(cluster: Cluster) -> list[psutil.Process]:
    """The process that asks NVML for the agent, if there is one at the moment."""
    (record,) = cluster.home.glob("nodes/*/agent.json")
    children = cluster.daemon(record.parent.name).children()
    return [child for child in children if alive(child) and "gpu.serving" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_what_breaks_is_shown_what_runs_goes_on_and_all_heals(idle_cluster: Cluster) -> None:
    cluster = idle_cluster
    cluster.up("2xT4")
    job = cluster.submit("--", "python", "-c", HOLD)
    wait_for("it holds memory", lambda: "CUDA out of memory" in cluster.log(job))
    before = cluster.wait_for_state(job, "RUNNING")
    used = [gpu["uuid"] for gpu in gpus(cluster)].index(before["gpu_uuids"][0])
    lost = 1 - used

    def held() -> list[tuple[str, int]]:
        return [(process["id"], process["mem_bytes"]) for process in gpus(cluster)[used]["processes"]]

    wait_for("its memory shows", lambda: held() == [(job, 5 * GIB)])
    assert "held True" in cluster.log(job)
    cluster.ebb("fake", "lose", str(lost))
    wait_for("it is told", lambda: gpus(cluster)[lost]["unhealthy_reason"] == "GPU is lost")
    assert gpus(cluster)[used]["healthy"]
    (first,) = asking(cluster)
    first.kill()
    cluster.ebb("fake", "heal")
    wait_for("another process asks", lambda: asking(cluster) not in ([], [first]))
    wait_for("all are back", lambda: all(gpu["healthy"] for gpu in gpus(cluster)), 60)
    after = cluster.show(job)
    assert (after["state"], after["pid"], after["attempt"]) == ("RUNNING", before["pid"], 1)
    cluster.ebb("cancel", "--now", "--wait", job)
