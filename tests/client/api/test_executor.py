"""An executor whose calls are jobs keeps what `concurrent.futures` promises."""

import concurrent.futures
import pickle
import sys
from concurrent.futures import CancelledError, Executor, as_completed
from typing import Any

import cloudpickle
import grpc
import pytest
from ebbtide import sealed
from ebbtide.cluster import Cluster, JobExecutor, JobFailed
from ebbtide_cli.api import functions
from ebbtide_protos.v1 import client_pb2

from tests.client.scripted_master import ScriptedMaster, make_job

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def executor(master: ScriptedMaster) -> JobExecutor:
    return Cluster.connect().executor(gpus=1)


def power(base: int, exponent: int = 2) -> int:
    return base**exponent


def end(master: ScriptedMaster, index: int | None = None, *, state: str = "COMPLETED", value: Any = None) -> None:
    """Let the job that was submitted last, or a task of it, end with this value."""
    folder = functions.folder_of(master.sent("Submit")[-1].spec.command)
    assert folder is not None
    job_id = "17" if index is None else f"17.{index}"
    sealed.write(folder, f"result-{job_id}-1", {"kind": "value"}, pickle.dumps(value))
    named = client_pb2.Job(array="17", index=index) if index is not None else client_pb2.Job()
    job = make_job(job_id, state, attempt=1)
    job.MergeFrom(named)
    master.add(job)


def test_a_call_is_a_job_with_positional_and_named_arguments(executor: JobExecutor, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    future = executor.submit(power, 3, exponent=3)
    assert isinstance(executor, Executor)
    assert (future.job.id, future.running(), future.done()) == ("17", True, False)
    folder = functions.folder_of(master.sent("Submit")[0].spec.command)
    assert folder is not None
    assert pickle.loads((folder / "inputs").read_bytes()) == ((3,), {"exponent": 3})
    end(master, value=27)
    assert future.result(30) == 27
    assert not future.running()


def test_a_map_is_one_submit_and_its_results_come_in_order(executor: JobExecutor, master: ScriptedMaster) -> None:
    for index in range(3):
        master.add(make_job(f"17.{index}", "RUNNING", array="17", index=index))
    results = executor.map(power, [1, 2, 3], [2, 2, 2])
    assert len(master.sent("Submit")) == 1
    for index in (2, 0, 1):
        end(master, index, value=index * 10)
    assert list(results) == [0, 10, 20]
    assert list(executor.map(power, [])) == []


def running(master: ScriptedMaster, tasks: int) -> None:
    """Let the array that is submitted next run, with so many tasks."""
    master.add(make_job("17", "RUNNING", tasks=client_pb2.TaskCounts(indices=f"0-{tasks - 1}")))
    for index in range(tasks):
        master.add(make_job(f"17.{index}", "RUNNING", array="17", index=index))


def test_a_map_that_takes_too_long_is_given_up_and_cancelled(executor: JobExecutor, master: ScriptedMaster) -> None:
    running(master, 2)
    with pytest.raises(TimeoutError):
        list(executor.map(power, [1, 2], timeout=0.1))
    assert [request.job_id for request in master.sent("Cancel")] == ["17"]


def test_a_task_that_fails_ends_the_others_also_if_too_much_is_asked_just_then(
    executor: JobExecutor, master: ScriptedMaster
) -> None:
    running(master, 3)
    results = executor.map(power, [1, 2, 3])
    master.busy_method, master.busy_s = "Cancel", [0.01]
    master.add(make_job("17.0", "FAILED", array="17", attempt=1))
    with pytest.raises(JobFailed, match=r"job 17.0 FAILED"):
        list(results)
    assert [request.job_id for request in master.sent("Cancel")] == ["17", "17"]


def test_tasks_that_cannot_be_cancelled_do_not_hide_why_one_failed(
    executor: JobExecutor, master: ScriptedMaster
) -> None:
    running(master, 3)
    results = executor.map(power, [1, 2, 3])
    master.refusals["Cancel"] = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the disk is full")
    master.add(make_job("17.0", "FAILED", array="17", attempt=1))
    with pytest.raises(JobFailed, match=r"job 17.0 FAILED") as failure:
        list(results)
    words = "the other tasks go on, because they could not be cancelled: the disk is full"
    assert failure.value.__notes__[-1] == words


def test_a_cancelled_future_cancels_its_job(executor: JobExecutor, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    future = executor.submit(power, 3)
    assert future.cancel()
    assert future.cancel()
    assert len(master.sent("Cancel")) == 1
    assert [*as_completed([future], timeout=30)] == [future]
    with pytest.raises(CancelledError):
        future.result()


def test_a_future_of_a_job_that_has_ended_cannot_be_cancelled(executor: JobExecutor, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    future = executor.submit(power, 3)
    master.refusals["Cancel"] = (grpc.StatusCode.FAILED_PRECONDITION, "job 17 is COMPLETED")
    end(master, value=9)
    assert not future.cancel()
    assert future.result(30) == 9


def test_a_job_that_somebody_else_cancels_cancels_its_future(executor: JobExecutor, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    future = executor.submit(power, 3)
    master.add(make_job(state="CANCELLED"))
    done, _ = concurrent.futures.wait([future], timeout=30)
    assert done == {future}
    assert future.cancelled()


def test_shutting_down_waits_and_takes_no_more_calls(executor: JobExecutor, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    with executor:
        future = executor.submit(power, 3)
        end(master, value=9)
    assert future.done()
    with pytest.raises(RuntimeError, match="was shut down"):
        executor.submit(power, 3)
    with pytest.raises(RuntimeError, match="was shut down"):
        executor.map(power, [3])


def test_shutting_down_without_waiting_leaves_the_jobs_running(executor: JobExecutor, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    future = executor.submit(power, 3)
    executor.shutdown(wait=False)
    assert not future.done()
    assert master.sent("Cancel") == []
    executor.shutdown(wait=True, cancel_futures=True)
    assert future.cancelled()
