"""The Python API against a scripted master: what it sends, what it waits for, and how it fails."""

import asyncio
import pickle
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import cloudpickle
import grpc
import pytest
from ebbtide import sealed
from ebbtide.cluster import AsyncCluster, AsyncJob, Cluster, Failure, Job, JobArray, JobFailed, JobProgress, Unreachable
from ebbtide_cli.api import functions
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.runs import Ebb
from tests.client.scripted_master import ScriptedMaster, make_job, share

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FREED = client_pb2.Suspension(requested=1.0, exited=2.0, gpu_free=3.0, checkpointed=job_pb2.CHECKPOINTED_YES)


@pytest.fixture
def cluster(master: ScriptedMaster) -> Cluster:
    return Cluster.connect()


def square(number: int) -> int:
    return number * number


def calling(folder: Path, job_id: str = "17", state: str = "COMPLETED", **fields: Any) -> client_pb2.Job:
    """A job that calls the function of this folder."""
    job = make_job(job_id, state, attempt=1, **fields)
    job.spec.ClearField("command")
    job.spec.command.extend(functions.command_of(folder, sys.executable))
    job.spec.name = "square"
    return job


def array(master: ScriptedMaster, states: list[str], folder: Path | None = None) -> None:
    """Let the master have array 17 with a task in each of these states."""
    for index, state in enumerate(states):
        named = {"array": "17", "index": index}
        task = calling(folder, f"17.{index}", state, **named) if folder else make_job(f"17.{index}", state, **named)
        master.add(task)
    over = all(state == "COMPLETED" for state in states)
    whole = make_job("17", "COMPLETED" if over else "RUNNING")
    whole.tasks.CopyFrom(client_pb2.TaskCounts(indices=f"0-{len(states) - 1}"))
    if folder:
        whole.spec.CopyFrom(master.jobs["17.0"].spec)
    master.add(whole)


# --- connecting ---


def test_without_a_master_connecting_fails_as_ebb_does(home: Path) -> None:
    with pytest.raises(Unreachable, match=re.escape(f"no master in EBB_HOME {home}: start one with 'ebb up'")):
        Cluster.connect()


def test_an_address_can_be_given(home: Path) -> None:
    with pytest.raises(Failure, match="'nowhere' is not HOST:PORT"):
        Cluster.connect("nowhere")


def test_a_master_that_does_not_allow_it_says_so_at_once(master: ScriptedMaster) -> None:
    master.refusals["ShowCluster"] = (grpc.StatusCode.UNAUTHENTICATED, "no token")
    with pytest.raises(Failure, match="no token") as failure:
        Cluster.connect()
    assert failure.value.code == 3


def test_a_cluster_stays_the_one_that_was_connected_to(
    cluster: Cluster, master: ScriptedMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBB_MASTER", "localhost:1")
    master.add(make_job(state="RUNNING"))
    assert cluster.job(17).state == "RUNNING"


# --- submitting ---


def test_a_function_becomes_a_job_that_calls_it_in_this_python(cluster: Cluster, master: ScriptedMaster) -> None:
    job = cluster.submit(square, 7, gpus=2, grace="30s")
    assert (job.id, repr(job)) == ("17", "<Job 17>")
    spec = master.sent("Submit")[0].spec
    folder = functions.folder_of(spec.command)
    assert folder is not None
    assert spec.command[0] == sys.executable
    assert (spec.name, spec.gpus_min, spec.grace_s) == ("square", share(2), 30.0)
    assert list(spec.needs.require_paths) == [str(folder), sys.executable]
    assert (spec.exit_zero, spec.HasField("snapshot")) == (job_pb2.EXIT_ZERO_COMPLETED, False)
    assert pickle.loads((folder / "inputs").read_bytes()) == ((7,), {})


def test_a_map_is_one_array_with_a_task_for_each_input(cluster: Cluster, master: ScriptedMaster) -> None:
    jobs = cluster.map(square, range(3), max_concurrent=2)
    request = master.sent("Submit")[0]
    assert [task.index for task in request.tasks] == [0, 1, 2]
    assert request.max_concurrent == 2
    assert [job.id for job in jobs] == ["17.0", "17.1", "17.2"]
    assert (jobs[-1].id, [job.id for job in jobs[1:]]) == ("17.2", ["17.1", "17.2"])


def test_a_function_in_another_environment_runs_its_python(cluster: Cluster, master: ScriptedMaster) -> None:
    cluster.submit(square, 7, venv=sys.prefix)
    spec = master.sent("Submit")[0].spec
    assert (spec.command[0], spec.python_env) == ("python", sys.prefix)


def test_a_command_is_sent_as_it_is(cluster: Cluster, master: ScriptedMaster) -> None:
    job = cluster.submit([sys.executable, "-c", "pass"], gpus=0, require_path="/")
    assert job.id == "17"
    assert list(master.sent("Submit")[0].spec.command) == [sys.executable, "-c", "pass"]


@pytest.mark.parametrize("work", ["python train.py", "train.sh"])
def test_a_command_in_one_text_is_refused_with_how_to_write_it(cluster: Cluster, work: str) -> None:
    with pytest.raises(TypeError, match=r"one list of words, such as \['python', 'train.py'\]"):
        cluster.submit(work)


def test_a_refused_function_leaves_nothing_behind(cluster: Cluster, master: ScriptedMaster, home: Path) -> None:
    master.refusals["Submit"] = (grpc.StatusCode.INVALID_ARGUMENT, "--gpus: there are 4")
    for refused in (lambda: cluster.submit(square, 7, gpus=8), lambda: cluster.submit(square, 7, gpus="x")):
        with pytest.raises(Failure, match="--gpus"):
            refused()
    with pytest.raises(TypeError, match="no option 'gpu'"):
        cluster.submit(square, 7, gpu=1)  # type: ignore[call-overload]
    assert list(home.glob("functions/*")) == []


def test_a_function_that_may_be_queued_keeps_its_files(
    cluster: Cluster, master: ScriptedMaster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide_cli.submitting.sending.RESUBMIT_S", 0.0)
    master.refusals["Submit"] = (grpc.StatusCode.UNAVAILABLE, "the master is stopping")
    with pytest.raises(Unreachable, match="see 'ebb ls' whether the job was queued"):
        cluster.submit(square, 7)
    assert len(list(home.glob("functions/*"))) == 1


def test_no_inputs_and_two_arrays_are_refused(cluster: Cluster) -> None:
    with pytest.raises(Failure, match="map: there are no inputs"):
        cluster.map(square, [])
    with pytest.raises(Failure, match="map: array: the inputs make an array already"):
        cluster.map(square, [1], array="0-3")
    with pytest.raises(Failure, match=r"limit of 10000"):
        cluster.map(square, range(10_001))


# --- finding jobs again ---


def test_jobs_are_found_by_name_with_what_they_call(cluster: Cluster, master: ScriptedMaster, home: Path) -> None:
    folder = functions.written(square, [((3,), {})], each=False, workdir=home, called="the arguments")
    sealed.write(folder, "result-17-1", {"kind": "value"}, pickle.dumps(9))
    master.add(calling(folder), make_job("18"))
    [job] = cluster.jobs(name="square", all=True)
    assert job == cluster.job(17)
    assert job.result() == 9
    request = master.sent("ListJobs")[0]
    assert (request.all, request.mine, request.folded) == (True, False, True)


def test_an_array_is_found_with_its_tasks(cluster: Cluster, master: ScriptedMaster) -> None:
    array(master, ["COMPLETED", "RUNNING"])
    found = cluster.job("17")
    assert isinstance(found, JobArray)
    assert [task.id for task in found] == ["17.0", "17.1"]


def test_an_array_of_thousands_of_tasks_with_gaps_is_found(cluster: Cluster, master: ScriptedMaster) -> None:
    whole = make_job("17", "RUNNING")
    whole.tasks.indices = ",".join(["0-2", *(str(index) for index in range(4, 4000, 2))])
    master.add(whole)
    for found in (cluster.job(17), *cluster.jobs()):
        assert isinstance(found, JobArray)
        assert [task.id for task in found] == [f"17.{index}" for index in (0, 1, 2, *range(4, 4000, 2))]


def test_a_listing_asks_what_ebb_ls_asks(cluster: Cluster, master: ScriptedMaster) -> None:
    cluster.jobs(mine=True, state=["failed", "RUNNING"], limit=5)
    request = master.sent("ListJobs")[0]
    assert list(request.states) == [job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_RUNNING]
    assert (request.all, request.mine, request.limit) == (True, True, 5)
    with pytest.raises(Failure, match=r"jobs: state: .*'runing'.*running"):
        cluster.jobs(state="runing")
    with pytest.raises(Failure, match="--mine: not together with --user"):
        cluster.jobs(mine=True, user="ada")


def test_unknown_ids_are_named(cluster: Cluster) -> None:
    for job_id, words in (("99", "job 99 does not exist"), ("x", "no job 'x'"), ("17.2-5", "take a part of that")):
        with pytest.raises(Failure, match=words):
            cluster.job(job_id)


# --- waiting ---


def test_a_job_is_waited_for_until_it_has_ended(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    job = cluster.job(17)
    assert not job.done()
    with pytest.raises(TimeoutError, match=r"after 0.1 s still waiting for job 17"):
        job.wait(timeout=0.1)
    ending = master_soon(master, make_job(state="COMPLETED"))
    assert job.wait() == "COMPLETED"
    assert (job.result(), job.exception(), next(ending)) == (None, None, None)


def master_soon(master: ScriptedMaster, job: client_pb2.Job, *, listings: int = 1) -> Iterator[None]:
    """Let the job change once it was listed again, so many times."""
    listed = len(master.sent("ListJobs"))

    def change() -> None:
        while len(master.sent("ListJobs")) < listed + listings:
            time.sleep(0.01)
        master.add(job)

    thread = threading.Thread(target=change)
    thread.start()

    def joined() -> Iterator[None]:
        thread.join()
        yield None

    return joined()


def test_a_wait_outlives_a_restart_of_the_master(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    job = cluster.job(17)
    job.state  # noqa: B018 - asks the master
    master.mute = 2
    waiting = job._link.waits.until("17")
    master.add(make_job(state="FAILED"))
    assert waiting.result(30).job_id == "17"
    assert master.mute == 0


def test_a_wait_goes_on_when_too_much_is_asked_at_a_time(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="COMPLETED"))
    job = cluster.job(17)
    master.busy_method, master.busy_s = "ListJobs", [0.01, 0.01]
    assert job._link.waits.until("17").result(30).job_id == "17"
    assert master.busy_s == []


def test_a_job_that_is_removed_while_it_is_waited_for_is_a_failure(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    waiting = cluster.job(17)._link.waits.until("17")
    del master.jobs["17"]
    with pytest.raises(Failure, match="no job 17: it was removed"):
        waiting.result(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_reaches_all_who_wait_and_later_waits_go_on(
    cluster: Cluster, master: ScriptedMaster
) -> None:
    master.add(make_job(state="RUNNING"))
    waits = cluster.job(17)._link.waits
    for waiting in [waits.until("17"), waits.until("17", lambda job: bool(1 / 0))]:
        with pytest.raises(ZeroDivisionError):
            waiting.result(30)
    for thread in threading.enumerate():
        if thread.name == "ebbtide jobs":
            thread.join(30)
    master.add(make_job(state="COMPLETED"))
    assert waits.until("17").result(30).job_id == "17"


def test_nothing_is_asked_once_nothing_is_waited_for(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="COMPLETED"))
    cluster.job(17)._link.waits.until("17").result(30)
    for thread in threading.enumerate():
        if thread.name == "ebbtide jobs":
            thread.join(30)
    assert "ebbtide jobs" not in [thread.name for thread in threading.enumerate()]
    assert cluster.job(17)._link.waits.until("17").result(30).job_id == "17"


def test_tasks_are_yielded_as_they_end(cluster: Cluster, master: ScriptedMaster) -> None:
    array(master, ["RUNNING", "COMPLETED"])
    jobs = cluster.job(17)
    assert isinstance(jobs, JobArray)
    ends = jobs.as_completed(timeout=60)
    assert next(ends).id == "17.1"
    array(master, ["COMPLETED", "COMPLETED"])
    assert [task.id for task in ends] == ["17.0"]
    assert jobs.wait() == "COMPLETED"


def test_the_result_of_an_array_is_that_of_its_tasks_in_order(
    cluster: Cluster, master: ScriptedMaster, home: Path
) -> None:
    calls = [((number,), {}) for number in range(3)]
    folder = functions.written(square, calls, each=True, workdir=home, called="the arguments")
    for index in range(3):
        sealed.write(folder, f"result-17.{index}-1", {"kind": "value"}, pickle.dumps(index * index))
    array(master, ["COMPLETED"] * 3, folder)
    assert cluster.job(17).result() == [0, 1, 4]


# --- ends without a result ---


def test_a_failed_job_shows_the_end_of_its_log(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="FAILED", reason="failed with exit code 3", exit_code=3, end_time=2.0))
    master.logs = [(1, b"line 1\nno such file\n")]
    with pytest.raises(JobFailed, match=r"job 17 FAILED \(failed with exit code 3\)") as failure:
        cluster.job(17).result()
    assert failure.value.job_id == "17"
    assert failure.value.__notes__ == ["the end of its log:\nline 1\nno such file"]
    assert master.sent("ReadLogs")[0].tail == 20


def test_a_log_that_cannot_be_read_hides_no_failure(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="FAILED", end_time=2.0))
    master.refusals["ReadLogs"] = (grpc.StatusCode.NOT_FOUND, "its node is away")
    error = cluster.job(17).exception()
    assert isinstance(error, JobFailed)
    assert error.__notes__ == ["its log cannot be read: its node is away"]


def test_what_another_user_s_job_came_to_is_theirs(cluster: Cluster, master: ScriptedMaster) -> None:
    """The master shows their job without its command."""
    job = make_job(state="COMPLETED", user="bob")
    job.spec.ClearField("command")
    master.add(job)
    with pytest.raises(Failure, match="job 17 is another user's: what it came to is not shown"):
        cluster.job(17).result()


def test_a_cancelled_job_raises_the_error_of_a_cancelled_future(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="CANCELLED", reason="cancelled by user"))
    with pytest.raises(CancelledError, match=r"job 17 CANCELLED \(cancelled by user\)"):
        cluster.job(17).result()
    assert isinstance(cluster.job(17).exception(), CancelledError)


# --- changing ---


def test_requests_are_those_of_the_verbs(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    job = cluster.job(17)
    job.suspend()
    job.resume()
    job.resize((2, 4))
    job.resize(0.5)
    job.cancel(now=True)
    sent = [(name, request) for name, request in master.requests if name not in ("ShowCluster", "ShowJob")]
    assert [name for name, _ in sent] == ["Suspend", "Resume", "Resize", "Resize", "Cancel"]
    sizes = [(request.gpus_min, request.gpus_max) for request in master.sent("Resize")]
    assert sizes == [(share(2), share(4)), (share(1, 2), share(1, 2))]
    assert master.sent("Cancel")[0].now
    with pytest.raises(Failure, match="resize: --gpus: '0' is no GPU at all"):
        job.resize(0)
    with pytest.raises(Failure, match="resize: --gpus: '100000000000' is more than the limit of 4096"):
        job.resize(10**11)


def test_a_suspension_is_awaited_until_the_gpus_are_free(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    job = cluster.job(17)
    freed = master_soon(master, make_job(state="SUSPENDED", held_by="user", suspensions=[FREED]))
    job.suspend(wait=True)
    next(freed)
    running = master_soon(master, make_job(state="RUNNING"))
    job.resume(wait=True)
    next(running)


def test_a_suspension_of_an_array_is_awaited_task_by_task(cluster: Cluster, master: ScriptedMaster) -> None:
    array(master, ["COMPLETED", "SUSPENDING"])
    jobs = cluster.job(17)
    left = make_job("17.1", "SUSPENDED", array="17", index=1, held_by="user", suspensions=[FREED])
    freed = master_soon(master, left, listings=2)
    jobs.suspend(wait=True, timeout=60)
    next(freed)


def test_a_task_that_ends_before_its_array_is_cancelled_is_named(cluster: Cluster, master: ScriptedMaster) -> None:
    array(master, ["STOPPING", "CANCELLED"])
    with pytest.raises(TimeoutError, match=r"after 0.1 s still waiting for job 17"):
        cluster.job(17).cancel(wait=True, timeout=0.1)
    ended = master_soon(master, make_job("17.0", "COMPLETED", array="17", index=0), listings=3)
    with pytest.raises(Failure, match=r"job 17.0 COMPLETED before it took effect"):
        cluster.job(17).cancel(wait=True, timeout=60)
    next(ended)


def test_work_that_is_lost_is_warned_of(cluster: Cluster, master: ScriptedMaster) -> None:
    lost = client_pb2.Suspension(requested=1.0, exited=2.0, gpu_free=3.0, lost="steps 1-20 will be repeated")
    lost.checkpointed = job_pb2.CHECKPOINTED_NO
    master.add(make_job(state="SUSPENDED", held_by="user", suspensions=[lost]))
    with pytest.warns(RuntimeWarning, match="not saved: steps 1-20 will be repeated"):
        cluster.job(17).suspend(wait=True)


def test_a_request_that_comes_too_late_says_what_became_of_the_job(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="COMPLETED", reason="completed"))
    with pytest.raises(Failure, match=r"job 17 COMPLETED \(completed\) before it took effect"):
        cluster.job(17).cancel(wait=True)


def test_a_removed_job_takes_the_files_of_its_function_along(
    cluster: Cluster, master: ScriptedMaster, home: Path
) -> None:
    folder = functions.written(square, [((3,), {})], each=False, workdir=home, called="the arguments")
    master.add(calling(folder))
    cluster.job(17).remove()
    assert not folder.exists()
    assert master.sent("Remove")[0].job_id == "17"


def test_ebb_rm_takes_the_files_of_a_function_along(ebb: Ebb, master: ScriptedMaster, home: Path) -> None:
    folder = functions.written(square, [((3,), {})], each=False, workdir=home, called="the arguments")
    master.add(calling(folder))
    assert ebb("rm", "17").out == "job 17 is removed\n"
    assert not folder.exists()


# --- looking ---


def test_progress_logs_and_facts_are_those_of_ebb_show(cluster: Cluster, master: ScriptedMaster) -> None:
    progress = job_pb2.Progress(step=3, total=10, loss=0.5, metrics={"accuracy": 0.9})
    master.add(make_job(state="RUNNING", progress=progress, reason="running", end_time=2.0))
    master.logs = [(1, b"caf\xc3"), (1, b"\xa9\n"), (2, b"more\n")]
    job = cluster.job(17)
    assert job.progress == JobProgress(3, 10, 0.5, {"accuracy": 0.9})
    assert (job.reason, job.name, job.facts()["id"]) == ("running", "train.py", "17")
    assert job.logs() == "café\nmore\n"
    assert list(job.follow()) == ["caf", "é\n", "more\n"]
    master.add(make_job())
    assert job.progress is None


def test_a_job_is_watched_to_its_end(cluster: Cluster, master: ScriptedMaster) -> None:
    master.add(make_job(state="RUNNING"))
    master.changes["17"] = [make_job(state="RUNNING"), make_job(state="COMPLETED"), make_job(state="COMPLETED")]
    assert [facts["state"] for facts in cluster.job(17).watch()] == ["RUNNING", "RUNNING", "COMPLETED"]


# --- coroutines ---


async def test_coroutines_have_the_same_methods(master: ScriptedMaster, home: Path) -> None:
    cluster = await AsyncCluster.connect()
    job = await cluster.submit(square, 3)
    folder = functions.folder_of(master.sent("Submit")[0].spec.command)
    assert folder is not None
    master.add(calling(folder, state="RUNNING"))
    waiting = asyncio.create_task(job.result())
    assert await job.state() == "RUNNING"
    with pytest.raises(TimeoutError, match="still waiting for job 17"):
        await job.wait(timeout=0.05)
    sealed.write(folder, "result-17-1", {"kind": "value"}, pickle.dumps(9))
    master.add(calling(folder))
    assert await waiting == 9
    assert await job.wait() == "COMPLETED"
    assert [facts["state"] async for facts in job.watch()] == ["COMPLETED"]
    assert [found.id for found in await cluster.jobs(name="square", all=True)] == ["17"]
    mapped = await cluster.map(square, [1, 2])
    assert [task.id for task in mapped] == ["17.0", "17.1"]


def test_every_method_has_its_twin() -> None:
    assert names(Job) - names(AsyncJob) == {"name", "follow"}
    assert names(Cluster) - names(AsyncCluster) == {"executor"}


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}
