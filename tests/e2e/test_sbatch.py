"""Scripts for Slurm, submitted unchanged to a real cluster: several nodes, tasks, steps, and leaving in time."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import ANY_ACCOUNT, EBB, Cluster, wait_for
from tests.sbatch.test_translation import REFUSED

SCRIPTS = Path(__file__).parents[1] / "sbatch/scripts"


@pytest.fixture
def slurm_cluster(idle_cluster: Cluster) -> Iterator[Cluster]:
    """Two nodes with four GPUs each, large enough for what such scripts ask for, and a file system that they share."""
    idle_cluster.up("none")
    shared = idle_cluster.home / "shared"
    for name in ("gpu-1", "gpu-2"):
        command = [*EBB, "agent", "--name", name, "--gpus", "4xA100-40GB", *ANY_ACCOUNT]
        agent = subprocess.Popen(
            [*command, "--checkpoint-root", str(shared), "--cpus", "64", "--mem", "256GiB"],
            env=idle_cluster.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        idle_cluster.agents.append(agent)
    wait_for("both nodes are up", lambda: {"gpu-1", "gpu-2"} <= idle_cluster.nodes_up())
    return idle_cluster


def lines(cluster: Cluster, job: str, *options: str) -> list[str]:
    return sorted(cluster.ebb("logs", *options, job).out.splitlines())


@pytest.mark.slow
def test_scripts_for_slurm_run_unchanged(slurm_cluster: Cluster) -> None:
    cluster = slurm_cluster
    names = ("single_gpu", "multi_node_torchrun", "multi_node_srun_tasks", "cpu_preprocess", "steps_in_background")
    jobs = {name: cluster.submit(str(SCRIPTS / f"{name}.sh")) for name in names}
    for job in jobs.values():
        assert cluster.wait_for_state(job, "COMPLETED", "FAILED")["state"] == "COMPLETED", cluster.log(job)

    assert lines(cluster, jobs["single_gpu"])[1] == "trained"
    first = lines(cluster, jobs["multi_node_torchrun"])
    assert first[1].startswith("node 0 of 2: torchrun --nnodes 2 --node_rank 0")
    later = "gpu-2" if cluster.show(jobs["multi_node_torchrun"])["attempts"][0]["nodes"][0] == "gpu-1" else "gpu-1"
    assert lines(cluster, jobs["multi_node_torchrun"], "--node", later)[0].startswith("node 1 of 2")
    tasks = lines(cluster, jobs["multi_node_srun_tasks"])
    assert [task.split(" sees ")[0] for task in tasks] == ["task 0 local 0", "task 1 local 1"]
    assert len({task.split(" sees ")[1] for task in tasks}) == 2
    shards = lines(cluster, jobs["cpu_preprocess"])
    assert shards == [f"shard {task} of 4 on 8 CPUs" for task in range(4)]
    assert [line.split()[1] for line in lines(cluster, jobs["steps_in_background"])] == ["1", "2", "3", "4"]


IMPOSSIBLE_HERE = {
    "conda_module": "pool",
    "exclusive_nodes": "4 nodes with 8 GPUs each are more than",
    "dependency_pipeline": "job 12",
}
"""What this cluster has no pool, no nodes, or no jobs for, and what it says."""


@pytest.mark.slow
def test_every_script_is_queued_or_refused_with_the_reason(slurm_cluster: Cluster) -> None:
    said = {}
    for path in sorted(SCRIPTS.iterdir()):
        result = slurm_cluster.ebb("submit", "--hold", str(path), code=None)
        said[path.stem] = result.err.splitlines()[-1] if result.code else ""
    refused = REFUSED | IMPOSSIBLE_HERE
    assert {name: words for name, words in said.items() if refused.get(name, "queued") not in (words or "queued")} == {}


@pytest.mark.slow
def test_a_script_that_requeues_itself_at_its_signal_is_suspended_and_goes_on(cluster: Cluster) -> None:
    script = (SCRIPTS / "requeue_usr1.sh").read_text().replace("gpu:a100:1", "gpu:1")
    path = cluster.home / "long.sh"
    path.write_text(script)
    job = cluster.submit(str(path))
    wait_for("the first run has begun", lambda: "run 0" in cluster.log(job))
    cluster.ebb("suspend", "--wait", job)
    suspension = cluster.show(job)["suspensions"][0]
    assert suspension["exited"] - suspension["requested"] < 60
    path.unlink()
    cluster.ebb("resume", job)
    wait_for("the second run has begun", lambda: "run 1" in cluster.log(job))
    assert "asked to leave, run 0" in cluster.log(job)
    cluster.ebb("cancel", "--now", "--wait", job)
