"""Jobs that use more GPU memory than they have, on fake GPUs, as their users see them."""

from pathlib import Path

from tests.e2e.cluster import Cluster, wait_for

GIB = 1 << 30
TAKES = """
import os, sys, time
import ebbtide
ebbtide.fake_allocate(int(sys.argv[1]) << 30)
print(f"holds {sys.argv[1]} of {int(os.environ['EBB_GPU_MEM_BYTES']) >> 30}", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""


def takes(gib: int, until: Path) -> tuple[str, ...]:
    """A command that holds so much GPU memory until that file is there."""
    return ("--", "python", "-c", TAKES, str(gib), str(until))


def test_who_uses_too_much_goes_on_with_more_and_who_runs_out_goes_on_alone_and_neighbours_notice_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    done, never = tmp_path / "done", tmp_path / "never"
    neighbour = cluster.submit("--gpus", "1/4", *takes(5, never))
    hungry = cluster.submit("--gpus", "1/4", "--name", "hungry", *takes(20, done))
    before = cluster.wait_for_state(neighbour, "RUNNING")
    wait_for("the hungry job is back", lambda: cluster.log(hungry) == "holds 20 of 10\nholds 20 of 22\n")
    shown = cluster.show(hungry)
    assert (shown["gpu_mem_bytes"], shown["gpu_mem_from"]) == (22 * GIB, "it used 20 GiB in attempt 1")
    assert shown["allocation"][0]["gpus"] == [{"uuid": shown["gpu_uuids"][0], "share": 0.25, "mem_bytes": 22 * GIB}]
    assert "uses 20 GiB of GPU memory, 10 GiB were given to it" in shown["suspensions"][0]["reason"]
    after = cluster.show(neighbour)
    assert (after["state"], after["attempt"], after["pid"]) == ("RUNNING", 1, before["pid"])

    run_out_of_memory_beside_a_large_job(cluster, done, never)

    wait_for("it has run for long enough to tell", lambda: cluster.show(hungry)["running_s"] > 5.5)
    done.touch()
    over = cluster.wait_for_state(hungry, "COMPLETED", "FAILED")
    assert (over["state"], over["attempts"][0]["gpu_mem_peak_bytes"]) == ("COMPLETED", 20 * GIB)
    answer = cluster.ebb("submit", "--gpus", "1/4", "--name", "hungry", *takes(20, done))
    assert "22GiB of GPU memory, from its last run" in answer.err
    again = cluster.wait_for_state(answer.out.strip(), "COMPLETED", "FAILED")
    assert (again["state"], again["gpu_mem_bytes"], again["attempt"]) == ("COMPLETED", 22 * GIB, 1)


def run_out_of_memory_beside_a_large_job(cluster: Cluster, done: Path, never: Path) -> None:
    """A job on a quarter of a GPU, of which another has most of the memory, is run again on a whole one."""
    large = cluster.submit("--gpus", "1/4", "--gpu-mem", "25GiB", *takes(25, never))
    wait_for("the large job has its memory", lambda: "holds 25" in cluster.log(large))
    job = cluster.submit("--gpus", "1/4", "--name", "unlucky", *takes(20, done))
    wait_for("it runs on a whole GPU", lambda: cluster.log(job).endswith("holds 20 of 40\n"))
    shown = cluster.wait_for_state(job, "RUNNING")
    assert (shown["attempt"], shown["restarts"]) == (2, 1)
    assert shown["attempts"][0]["outcome"].startswith("out of GPU memory (10 GiB); it is run again, this once,")
    assert (shown["gpus"]["allocated"], shown["gpu_mem_bytes"]) == (1, 11 * GIB)
    assert "11GiB: it ran out of 10 GiB in attempt 1" in cluster.ebb("show", job).out
    story = cluster.ebb("story", job).out
    assert "ended: exit code 1, out of GPU memory" in story
    assert "needs 11 GiB of GPU memory and a GPU of its own: it ran out of 10 GiB in attempt 1" in story
    assert (cluster.show(large)["state"], cluster.show(large)["attempt"]) == ("RUNNING", 1)
