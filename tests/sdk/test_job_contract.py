"""What a script is told, what it tells, and how it leaves: against a real socket and real signals."""

import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import ebbtide
import pytest
from ebbtide import channel, checkpoints, jobs
from ebbtide.environment import Environment

from tests.sdk.listening import DEADLINE_S, Listener

MakeJob = Callable[..., ebbtide.Job]
HERE = Path(__file__).parent


def writing(text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "state").write_text(text)


def environment(tmp_path: Path, attempt: int, resume_dir: str = "") -> dict[str, str]:
    return {
        "EBB_JOB_ID": "7",
        "EBB_ATTEMPT": str(attempt),
        "EBB_CHECKPOINT_DIR": str(tmp_path / "7" / f"attempt-{attempt}"),
        "EBB_RESUME_DIR": resume_dir,
        "EBB_SOCKET": str(tmp_path / "job.sock"),
    }


def test_outside_ebbtide_nothing_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    job = jobs.Job(Environment.read({"PATH": "/bin"}))
    assert job.id is None
    assert job.load_checkpoint() is None
    assert job.should_suspend() is False
    job.report(step=1, total=2, loss=0.5)
    job.checkpoint(writing("x"), 1)
    job.suspend(writing("x"), 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_directory_set_by_hand_works_without_a_cluster(tmp_path: Path) -> None:
    by_hand = {"EBB_CHECKPOINT_DIR": str(tmp_path)}
    job = jobs.Job(Environment.read(by_hand))
    assert job.load_checkpoint() is None
    for step in (10, 20, 30):
        job.checkpoint(writing(f"step {step}"), step)
    state = jobs.Job(Environment.read(by_hand)).load_checkpoint()
    assert state is not None
    assert (state.step, (state.path / "state").read_text()) == (30, "step 30")
    assert job.should_suspend() is False


def test_the_environment_is_typed(tmp_path: Path) -> None:
    variables = environment(tmp_path, 3) | {
        "EBB_GPU_COUNT": "2",
        "EBB_GPU_SHARE": "1/4",
        "EBB_GPU_MEM_BYTES": "10737418240",
        "EBB_GRACE_S": "90",
        "EBB_NODE_RANK": "1",
        "EBB_NUM_NODES": "2",
        "EBB_ARRAY_INDEX": "0",
        "RANK": "3",
        "EBB_STOP_SIGNAL": "SIGUSR1",
        "EBB_OUTPUT_DIR": "/o",
    }
    given = Environment.read(variables)
    assert (given.id, given.attempt, given.array_index, given.rank) == ("7", 3, 0, 3)
    assert (given.gpu_count, given.gpu_share, given.gpu_mem_bytes, given.grace_s) == (2, 0.25, 10 * 2**30, 90.0)
    assert (given.node_rank, given.num_nodes, given.stop_signal) == (1, 2, signal.SIGUSR1)
    assert (given.resume_dir, given.output_dir) == (None, Path("/o"))
    unset = Environment.read(environment(tmp_path, 1) | {"EBB_ARRAY_INDEX": "", "EBB_GPU_MEM_BYTES": ""})
    assert (unset.array_index, unset.gpu_mem_bytes, unset.grace_s) == (None, None, 180.0)


@pytest.mark.parametrize("name", ["EBB_ATTEMPT", "EBB_GRACE_S", "EBB_STOP_SIGNAL"])
def test_a_malformed_variable_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must .* 'three'"):
        Environment.read(environment(tmp_path, 1) | {name: "three"})


def test_a_job_takes_its_signal_back_from_a_library_that_has_put_its_own_handler_there(make_job: MakeJob) -> None:
    job = make_job()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job.catch_signal_again()
    signal.raise_signal(signal.SIGTERM)
    assert job.should_suspend() is True


def test_progress_is_sent_at_first_at_last_and_five_times_a_second_between(
    make_job: MakeJob, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr(jobs, "time", clock)
    job = make_job()
    messages = []
    for step in range(1, 101):
        job.report(step=step, total=100, loss=1 / step)
        clock.now += 0.0625
        messages += listener.arrived()
    assert [message["step"] for message in messages] == [*range(1, 100, 4), 100]
    assert messages[0] == {"kind": "progress", "rank": 0, "step": 1, "total": 100, "loss": 1.0}


def test_a_loss_that_is_not_a_number_is_null(make_job: MakeJob, listener: Listener) -> None:
    make_job().report(step=1, loss=math.nan)
    told = {"kind": "progress", "rank": 0, "step": 1, "total": None, "loss": None}
    assert listener.arrived() == [told | {"metrics": {"loss": None}}]


def test_a_metric_holds_until_it_is_given_again(
    make_job: MakeJob, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr(jobs, "time", clock)
    job = make_job()
    job.report(step=1)
    job.report(step=2, accuracy=0.5)  # too soon to be sent
    for step, metrics in ((3, {}), (4, {"accuracy": 0.75, "val/loss": math.inf}), (5, {})):
        clock.now += 1.0
        job.report(step=step, loss=1.0, **metrics)
    told = [message.get("metrics") for message in listener.arrived() if message["kind"] == "progress"]
    assert told == [None, {"accuracy": 0.5}, *[{"accuracy": 0.75, "val/loss": None}] * 2]


def test_a_metric_keeps_no_tensor_of_a_training_alive_and_is_a_number_only_when_it_is_sent(
    make_job: MakeJob, listener: Listener
) -> None:
    asked = []

    class Tensor:
        def detach(self):
            return SimpleNamespace(item=lambda: asked.append("sent") or 0.25)

    job = make_job()
    job.report(step=1)
    job.report(step=2, total=9, accuracy=Tensor())
    assert asked == []
    job.report(step=9, total=9)
    assert asked == ["sent"]
    assert listener.arrived()[-1]["metrics"] == {"accuracy": 0.25}


def test_only_rank_0_reports_progress(make_job: MakeJob, listener: Listener) -> None:
    make_job(RANK="1").report(step=1)
    make_job(RANK="0").report(step=2)
    assert [message["step"] for message in listener.arrived()] == [2]


def test_a_supervisor_that_does_not_listen_never_blocks_progress(tmp_path: Path, listener: Listener) -> None:
    sent = 0
    while channel.send(str(listener.path), {"kind": "progress"}, timeout_s=0):
        sent += 1
    assert len(listener.arrived()) == sent


def test_a_missing_or_dead_socket_is_no_error(tmp_path: Path) -> None:
    assert not channel.send(None, {"kind": "asked"})
    assert not channel.send(str(tmp_path / "missing" / "job.sock"), {"kind": "asked"})
    with Listener(tmp_path / "dead.sock"):
        pass
    assert not channel.send(str(tmp_path / "dead.sock"), {"kind": "asked"})


def test_a_socket_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with Listener(deep / "job.sock") as listener:
        assert channel.send(str(listener.path), {"kind": "asked"})
        assert listener.arrived() == [{"kind": "asked"}]


def test_a_job_that_is_asked_saves_acknowledges_and_leaves_with_85(
    make_job: MakeJob, listener: Listener, tmp_path: Path
) -> None:
    job = make_job()
    assert not job.should_suspend()
    job.report(step=12, total=100)
    signal.raise_signal(signal.SIGTERM)
    assert job.should_suspend()
    assert job.should_suspend()
    with pytest.raises(SystemExit) as exit_info:
        job.suspend(writing("twelve"))
    assert exit_info.value.code == 85
    asked, progress, checkpoint, acknowledge = listener.arrived()
    assert progress["kind"] == "progress"
    assert asked == {"kind": "asked", "rank": 0}
    path = tmp_path / "7" / "attempt-1" / "step-000000000012"
    assert checkpoint == {
        "kind": "checkpoint",
        "rank": 0,
        "step": 12,
        "bytes": 6,
        "path": str(path),
        "verified": True,
    }
    assert acknowledge == {"kind": "acknowledge", "rank": 0, "step": 12}
    assert checkpoints.verify(path).step == 12


def test_more_signals_do_not_disturb_the_save(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    signal.raise_signal(signal.SIGTERM)

    def save(directory: Path) -> None:
        signal.raise_signal(signal.SIGTERM)
        (directory / "state").write_text("whole")
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        job.suspend(save, 5)
    newest = checkpoints.newest_valid(tmp_path / "7")
    assert newest is not None
    assert (newest.path / "state").read_text() == "whole"


def test_a_save_that_fails_is_raised_and_not_acknowledged(
    make_job: MakeJob, listener: Listener, tmp_path: Path
) -> None:
    job = make_job()
    job.checkpoint(writing("old"), 1)
    listener.arrived()

    def full(directory: Path) -> None:
        (directory / "state").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        job.suspend(full, 2)
    assert listener.arrived() == []
    newest = checkpoints.newest_valid(tmp_path / "7")
    assert newest is not None
    assert newest.step == 1


def test_a_checkpoint_for_which_there_is_no_room_is_not_begun(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.checkpoint(writing("x" * 100), 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=99))
    with pytest.raises(OSError, match="about 100 bytes, 99 are free") as error:
        job.checkpoint(lambda directory: pytest.fail("the save was begun"), 2)
    assert error.value.errno == errno.ENOSPC


def test_a_save_that_only_links_needs_no_room_unless_it_has_to_copy_to_another_file_system(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.checkpoint(writing("x" * 100), 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=99))
    with pytest.raises(OSError, match="about 100 bytes, 99 are free"):
        job.checkpoint(jobs.LinkingSave(writing("y"), Path("/proc")), 2)
    job.checkpoint(jobs.LinkingSave(writing("y"), tmp_path), 2)
    assert [path.name for path in (tmp_path / "7" / "attempt-1").iterdir() if "2" in path.name] == ["step-000000000002"]


def test_what_a_killed_save_left_is_removed_before_the_next_attempt_needs_the_room(
    make_job: MakeJob, tmp_path: Path
) -> None:
    make_job(attempt=1).checkpoint(writing("first"), 1)
    draft = tmp_path / "7" / "attempt-1" / f".step-000000000002-{os.getpid()}-00c0ffee"
    draft.mkdir()
    (draft / "state").write_text("half")
    make_job(attempt=2).checkpoint(lambda directory: writing(str(draft.exists()))(directory), 3)
    newest = checkpoints.newest_valid(tmp_path / "7")
    assert newest is not None
    assert (newest.path / "state").read_text() == "False"


def test_two_processes_that_save_at_once_lose_nothing_of_each_other(make_job: MakeJob, tmp_path: Path) -> None:
    """As ranks do that were started without a process group, each of which takes itself for the first."""
    jobs = [make_job(), make_job()]

    def save(number: int) -> None:
        for step in range(1, 41):
            jobs[number].checkpoint(writing(f"{number} {step}"), step)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, range(2)))
    left = sorted((tmp_path / "7" / "attempt-1").iterdir())
    assert [path.name[:17] for path in left] == ["step-000000000040", "step-000000000040"]
    assert {checkpoints.verify(path).step for path in left} == {40}
    assert {(path / "state").read_text() for path in left} == {"0 40", "1 40"}


def test_steps_that_start_anew_are_refused_before_they_hide_a_newer_checkpoint(make_job: MakeJob) -> None:
    job = make_job()
    job.checkpoint(writing("first epoch"), 100)
    job.checkpoint(writing("again"), 100)
    with pytest.raises(ValueError, match="step 1 is below step 100"):
        job.checkpoint(lambda directory: pytest.fail("the save was begun"), 1)


def test_without_a_step_a_suspend_takes_the_one_last_saved(make_job: MakeJob, listener: Listener) -> None:
    job = make_job()
    job.checkpoint(writing("saved"), 100)
    with pytest.raises(SystemExit):
        job.suspend(writing("suspended"))
    assert listener.arrived()[-1] == {"kind": "acknowledge", "rank": 0, "step": 100}


@pytest.mark.parametrize("saved", [(), (100,)])
def test_a_script_that_reports_no_step_is_warned_that_its_checkpoint_counts_as_an_earlier_one(
    make_job: MakeJob, capfd: pytest.CaptureFixture[str], saved: tuple[int, ...]
) -> None:
    job = make_job()
    for step in saved:
        job.checkpoint(writing("saved"), step)
    with pytest.raises(SystemExit):
        job.suspend(writing("suspended"))
    assert f"this checkpoint counts as step {max(saved, default=0)}, because" in capfd.readouterr().err


def test_a_script_that_says_its_step_is_not_warned(make_job: MakeJob, capfd: pytest.CaptureFixture[str]) -> None:
    reporting = make_job()
    reporting.report(step=5)
    for suspend in (lambda: reporting.suspend(writing("x")), lambda: make_job(attempt=2).suspend(writing("x"), 7)):
        with pytest.raises(SystemExit):
            suspend()
    assert capfd.readouterr().err == ""


def test_a_script_that_saved_by_itself_only_acknowledges(make_job: MakeJob, listener: Listener, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        make_job().suspend(step=3)
    assert listener.arrived() == [{"kind": "acknowledge", "rank": 0, "step": 3}]
    assert not list(checkpoints._candidates(tmp_path / "7"))


def test_other_ranks_without_a_process_group_leave_the_saving_to_rank_0(
    make_job: MakeJob, listener: Listener, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        make_job(RANK="1").suspend(writing("x"), 3)
    assert listener.arrived() == [{"kind": "acknowledge", "rank": 1, "step": 3}]
    assert not list(checkpoints._candidates(tmp_path / "7"))


def test_without_ranks_the_process_on_the_first_node_alone_saves_and_reports(
    make_job: MakeJob, listener: Listener, tmp_path: Path
) -> None:
    first, second = (make_job(EBB_NUM_NODES="2", EBB_NODE_RANK=node) for node in ("0", "1"))
    listener.arrived()

    def save_while_the_other_saves(directory: Path) -> None:
        second.report(step=3)
        second.checkpoint(writing("other"), 3)
        (directory / "state").write_text("first")

    first.checkpoint(save_while_the_other_saves, 3)
    with pytest.raises(SystemExit):
        second.suspend(writing("other"), 3)
    told = [(message["kind"], message["rank"]) for message in listener.arrived()]
    assert told == [("checkpoint", 0), ("acknowledge", 1)]  # as the second node's supervisor expects of its process
    [path] = (tmp_path / "7" / "attempt-1").iterdir()
    assert (path / "state").read_text() == "first"
    assert Environment.read({"EBB_JOB_ID": "7", "EBB_NODE_RANK": "1", "RANK": "0"}).rank == 0


def test_a_job_resumes_from_the_directory_that_it_is_given(
    make_job: MakeJob, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_job(attempt=1).checkpoint(writing("forty"), 40)
    resume_dir = tmp_path / "7" / "attempt-1" / "step-000000000040"
    job = make_job(attempt=2, EBB_RESUME_DIR=str(resume_dir))
    state = job.load_checkpoint()
    assert state == ebbtide.State(resume_dir, 40, 1)
    with pytest.raises(SystemExit):
        job.suspend(writing("forty, unchanged"))
    assert (tmp_path / "7" / "attempt-2" / "step-000000000040" / "state").exists()
    assert capfd.readouterr().err == "", "no step was done since"


def test_a_checkpoint_without_a_step_counts_as_step_0(make_job: MakeJob, tmp_path: Path) -> None:
    attempt_dir = tmp_path / "7" / "attempt-1"
    attempt_dir.mkdir(parents=True)
    (attempt_dir / "own.ckpt").write_text("own")
    checkpoints.seal(attempt_dir, job_id="7", attempt=1, complete=True)
    state = make_job(attempt=2, EBB_RESUME_DIR=str(attempt_dir)).load_checkpoint()
    assert state == ebbtide.State(attempt_dir, 0, 1)


def test_a_damaged_checkpoint_is_an_error_and_not_a_fresh_start(make_job: MakeJob, tmp_path: Path) -> None:
    make_job(attempt=1).checkpoint(writing("forty"), 40)
    resume_dir = tmp_path / "7" / "attempt-1" / "step-000000000040"
    (resume_dir / "state").write_text("for")
    with pytest.raises(ebbtide.InvalidCheckpoint, match="3 bytes, 5 in MANIFEST"):
        make_job(attempt=2, EBB_RESUME_DIR=str(resume_dir)).load_checkpoint()


def test_a_script_started_twice_in_one_attempt_goes_on_from_its_own_checkpoint(
    make_job: MakeJob, tmp_path: Path
) -> None:
    make_job(attempt=1).checkpoint(writing("old"), 40)
    resume_dir = tmp_path / "7" / "attempt-1" / "step-000000000040"
    make_job(attempt=2, EBB_RESUME_DIR=str(resume_dir)).checkpoint(writing("new"), 50)
    state = make_job(attempt=2, EBB_RESUME_DIR=str(resume_dir)).load_checkpoint()
    assert state is not None
    assert (state.step, state.attempt) == (50, 2)


def test_two_checkpoints_are_kept_over_suspends_and_saves(make_job: MakeJob, tmp_path: Path) -> None:
    resume_dir = ""
    for attempt in (1, 2, 3):
        job = make_job(attempt=attempt, EBB_RESUME_DIR=resume_dir)
        job.load_checkpoint()
        job.checkpoint(writing("saved"), attempt * 10)
        with pytest.raises(SystemExit):
            job.suspend(writing("suspended"), attempt * 10 + 5)
        resume_dir = str(tmp_path / "7" / f"attempt-{attempt}" / f"step-{attempt * 10 + 5:012d}")
    left = sorted(path.name for path in (tmp_path / "7").glob("*/step-*"))
    assert left == ["step-000000000030", "step-000000000035"]


def test_a_first_call_outside_the_main_thread_warns_that_nothing_will_be_caught(make_job: MakeJob) -> None:
    caught: list[str] = []

    def call() -> None:
        with pytest.warns(RuntimeWarning, match="outside the main thread"):
            caught.append(str(make_job().id))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert caught == ["7"]


@contextmanager
def run(program: str, *arguments: str, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """One of the jobs beside this file; whatever of it is left at the end is killed."""
    job = subprocess.Popen(
        [sys.executable, HERE / program, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with job:
            try:
                yield job
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
    finally:
        assert job.returncode is not None


def test_no_step_is_lost_or_repeated_over_a_suspend(tmp_path: Path, listener: Listener) -> None:
    journal = tmp_path / "journal"
    total = "1000000"
    with run("counting_job.py", total, str(journal), variables=environment(tmp_path, 1)) as first:
        listener.wait_for("progress")
        first.send_signal(signal.SIGTERM)
        step = listener.wait_for("acknowledge")["step"]
        assert first.wait(DEADLINE_S) == 85
    newest = checkpoints.newest_valid(tmp_path / "7")
    assert newest is not None
    assert newest.step == step
    more = str(step + 50)
    with run("counting_job.py", more, str(journal), variables=environment(tmp_path, 2, str(newest.path))) as second:
        assert second.stdout is not None
        printed = int(second.stdout.read())
        assert second.wait(DEADLINE_S) == 0
    assert printed == sum(range(1, int(more) + 1))
    assert [int(line) for line in journal.read_text().split()] == list(range(1, int(more) + 1))


def test_a_signal_that_comes_while_the_job_asks_its_supervisor_is_not_lost(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()

    def no_answer_and_a_signal(connection: channel.Connection) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    with monkeypatch.context() as while_it_asks:
        while_it_asks.setattr(channel.Connection, "is_asked_to_leave", no_answer_and_a_signal)
        job.should_suspend()
    assert job.should_suspend()


def test_a_job_that_would_acknowledge_says_so_at_the_first_opportunity(tmp_path: Path, listener: Listener) -> None:
    with run("counting_job.py", "3", str(tmp_path / "journal"), "stop", variables=environment(tmp_path, 1)) as job:
        assert job.wait(DEADLINE_S) == 0
    first, *others = [message["kind"] for message in listener.arrived()]
    assert (first, set(others)) == ("asked", {"progress"})


def test_a_job_that_is_done_is_not_killed_while_it_shuts_down(tmp_path: Path, listener: Listener) -> None:
    with run("finishing_job.py", variables=environment(tmp_path, 1)) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "leaving\n"
        job.send_signal(signal.SIGTERM)
        job.communicate("\n", timeout=DEADLINE_S)
    assert job.returncode == 0


def test_forked_children_are_not_the_job(tmp_path: Path, listener: Listener) -> None:
    with run("forking_job.py", variables=environment(tmp_path, 1)) as job:
        assert job.stdout is not None
        lines = job.stdout.read().splitlines()
        assert job.wait(DEADLINE_S) == 85
    assert lines == [
        "parent asked True",
        "child asked False",
        f"child told to terminate {-signal.SIGTERM}",
        "pool terminated",
    ]
    kinds = [message["kind"] for message in listener.arrived()]
    assert kinds == ["progress", "asked", "checkpoint", "acknowledge"]
