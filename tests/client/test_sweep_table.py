"""`ebb show SWEEP`: what each task has come to, and which is best."""

import pytest
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.scripted_master import ScriptedMaster, make_job


@pytest.fixture
def sweep(master: ScriptedMaster) -> None:
    """Three tasks that have reported, and one that has not begun."""
    master.add(make_job("17", state="RUNNING", tasks=client_pb2.TaskCounts(indices="0-3", states={"RUNNING": 4})))
    for index, (lr, loss, accuracy) in enumerate([("0.1", 0.5, 0.75), ("0.01", 0.125, 0.875), ("1e-3", 2.5, 0.25)]):
        progress = job_pb2.Progress(step=9, loss=loss, metrics={"accuracy": accuracy})
        master.add(make_job(f"17.{index}", "RUNNING", array="17", index=index, params={"lr": lr}, progress=progress))
    master.add(make_job("17.3", array="17", index=3, params={"lr": "10"}))


def order(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines() if line.startswith("17.")]


@pytest.mark.usefixtures("sweep")
def test_each_task_is_shown_with_what_it_reported_last(ebb):
    out = ebb("show", "17").out
    [title] = [line for line in out.splitlines() if line.startswith("ID ")]
    assert title.split()[3:6] == ["PROGRESS", "LOSS", "ACCURACY"]
    [second] = [line for line in out.splitlines() if line.startswith("17.1")]
    assert second.split()[3:6] == ["9", "0.125", "0.875"]


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "loss"], ["17.1", "17.0", "17.2", "17.3"]),
        (["--sort", "accuracy", "--reverse"], ["17.1", "17.0", "17.2", "17.3"]),
        (["--sort", "lr"], ["17.2", "17.1", "17.0", "17.3"]),
    ],
)
def test_tasks_are_ordered_by_metrics_and_params_and_those_without_come_last(ebb, options, expected):
    assert order(ebb("show", *options, "17").out) == expected
    assert [task["id"] for task in ebb("show", *options, "17", "--json").json["jobs"]] == expected


@pytest.mark.usefixtures("sweep")
def test_what_no_task_has_is_refused_with_what_they_have(ebb, master):
    result = ebb("show", "--sort", "f1", "17")
    assert (result.code, result.complaint) == (2, "show: --sort: no task has 'f1', but loss, accuracy, lr")
    master.add(make_job("18"))
    assert ebb("show", "--sort", "loss", "18").code == 2
