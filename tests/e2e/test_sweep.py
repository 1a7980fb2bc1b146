"""A sweep on a real cluster: each task has its own values, in its command and in its environment."""

import pytest

from tests.e2e.cluster import Cluster, wait_for


@pytest.mark.slow
def test_each_task_of_a_sweep_has_its_values(cluster: Cluster) -> None:
    command = ("sh", "-c", "echo lr {lr} is $EBB_PARAM_LR, task $EBB_ARRAY_INDEX of bs {bs}")
    array = cluster.submit("--cpu-only", "--param", "lr=.1,.01", "--param", "bs=32,64", "--", *command)
    wait_for("all tasks have completed", lambda: cluster.ebb("wait", array, code=None).code == 0)
    logs = [cluster.log(f"{array}.{index}").strip() for index in range(4)]
    assert logs == [
        "lr .1 is .1, task 0 of bs 32",
        "lr .1 is .1, task 1 of bs 64",
        "lr .01 is .01, task 2 of bs 32",
        "lr .01 is .01, task 3 of bs 64",
    ]
