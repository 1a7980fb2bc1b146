"""A job that runs out of GPU memory beside others, on fake GPUs, as its user sees it."""

from tests.e2e.cluster import Cluster

NEEDS_A_WHOLE_GPU = """
import os, sys
import ebbtide
job = ebbtide.job()
if os.environ["EBB_GPU_SHARE"] != "1":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
print("fits into", os.environ["EBB_GPU_MEM_BYTES"])
"""


def test_a_script_that_runs_out_of_memory_on_a_quarter_gpu_completes_on_a_whole_one(cluster: Cluster) -> None:
    neighbour = cluster.submit("--gpus", "1/4", "--", "sleep", "600")
    job = cluster.submit("--gpus", "1/4", "--name", "hungry", "--", "python", "-c", NEEDS_A_WHOLE_GPU)
    shown = cluster.wait_for_state(job, "COMPLETED", "FAILED")
    assert (shown["state"], shown["attempt"], shown["restarts"]) == ("COMPLETED", 2, 1)
    assert shown["attempts"][0]["outcome"].startswith("out of GPU memory (10 GiB); it is run again, this once,")
    assert (shown["gpus"]["min"], shown["gpu_mem_bytes"]) == (1, 11 << 30)
    assert shown["gpu_mem_from"] == "it ran out of 10 GiB in attempt 1"
    assert cluster.log(job).endswith(f"fits into {40 << 30}\n")
    assert "11GiB: it ran out of 10 GiB in attempt 1" in cluster.ebb("show", job).out
    story = cluster.ebb("story", job).out
    assert "ended: exit code 1, out of GPU memory" in story
    assert "needs 11 GiB of GPU memory and a GPU of its own: it ran out of 10 GiB in attempt 1" in story
    assert (cluster.show(neighbour)["state"], cluster.show(neighbour)["attempt"]) == ("RUNNING", 1)
