"""Whoever judges a storm finds each kind of wrong, and nothing where nothing is wrong."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import pytest
from ebbtide import checkpoints
from ebbtide_agent.gpu import fake_state
from ebbtide_agent.processes import procfs
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.faults import figures
from tests.faults.kills import Tally, compare
from tests.faults.people import People
from tests.faults.strikes import strikes
from tests.faults.verdict import Line, double_bookings, lost_checkpoints, overlaps, repeated, untrue_ends


def line(what: str, attempt: int = 1, **more: object) -> Line:
    return {"at": 0.0, "what": what, "attempt": attempt, **more}


GOOD = [
    line("begin", step=0), line("step", step=0), line("saved", step=5), line("leaves", step=5),
    line("begin", 2, step=5), line("saved", 2, step=9), line("done", 2, step=9),
]  # fmt: skip


def published(folder: Path, step: int) -> Path:
    attempt = folder / "attempt-1"
    checkpoints.publish(attempt, step, lambda place: (place / "n").write_text("n"), job_id="1", attempt=1)
    return folder


def test_a_job_that_stepped_aside_and_came_back_did_nothing_wrong(tmp_path: Path) -> None:
    assert list(overlaps("1", GOOD)) == []
    assert list(lost_checkpoints("1", GOOD, published(tmp_path, 9))) == []


@pytest.mark.parametrize(
    "more",
    [
        [line("overlap", 3, found="its lock")],
        [line("begin", 2, step=9)],
        [line("begin", 1, step=9)],
        [line("step", 1, step=6)],
    ],
    ids=["found-another", "began-twice", "an-older-one-began", "an-older-one-goes-on"],
)
def test_two_attempts_are_found(more: list[Line]) -> None:
    assert len(list(overlaps("1", GOOD + more))) == 1


def test_a_job_that_was_done_and_began_again_is_found() -> None:
    again = [*GOOD, line("begin", 3, step=9)]
    assert len(list(repeated("1", again, ()))) == 1
    assert list(repeated("1", again, {"1.2"})) == []  # nobody was left who could have told
    assert list(repeated("1", GOOD, ())) == []


def test_an_attempt_that_begins_before_what_was_saved_is_found(tmp_path: Path) -> None:
    [wrong] = lost_checkpoints("1", [*GOOD, line("begin", 3, step=5)], published(tmp_path, 9))
    assert "step 9 was saved" in wrong


def test_a_checkpoint_that_is_gone_is_found(tmp_path: Path) -> None:
    assert len(list(lost_checkpoints("1", GOOD, published(tmp_path, 5)))) == 1
    assert len(list(lost_checkpoints("1", GOOD, tmp_path / "nothing"))) == 1


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[object]:
    """Starts processes that hold a share of GPU g; they end with the test."""
    with ExitStack() as closing:

        def start(share: str) -> None:
            process = subprocess.Popen(
                [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"EBB_GPU_SHARE": share}
            )
            closing.enter_context(process)
            closing.callback(process.kill)
            while f"EBB_GPU_SHARE={share}".encode() not in Path(f"/proc/{process.pid}/environ").read_bytes():
                os.sched_yield()  # it has not replaced what it was forked from yet
            fake_state.register(tmp_path, process.pid, procfs.read_stat(process.pid).starttime, {"g": 1})

        yield start


@pytest.mark.parametrize(
    ("shares", "wrong"), [(["1"], 0), (["1/2", "1/4", "1/4"], 0), (["1", "1/4"], 1), (["1", "1"], 1)]
)
def test_a_gpu_that_is_given_away_twice_is_found(tmp_path: Path, hold, shares: list[str], wrong: int) -> None:
    for share in shares:
        hold(share)
    assert len(list(double_bookings(tmp_path))) == wrong


@pytest.mark.parametrize(
    ("state", "code", "true"),
    [("COMPLETED", 0, True), ("FAILED", 3, False), ("FAILED", 125, False), ("CANCELLED", None, False)],
)
def test_an_end_that_the_last_attempt_did_not_say_is_found(tmp_path: Path, state: str, code: int, true: bool) -> None:
    people = People(tmp_path, tmp_path, 1)
    job = client_pb2.Job(job_id="1", state=job_pb2.JobState.Value(f"JOB_STATE_{state}"), exit_code=code)
    assert (list(untrue_ends(job, GOOD, people)) == []) is true


def test_who_was_cancelled_on_request_need_not_say_anything(tmp_path: Path) -> None:
    people = People(tmp_path, tmp_path, 1)
    people.cancelled.add("1")
    job = client_pb2.Job(job_id="1", state=job_pb2.JOB_STATE_CANCELLED)
    assert list(untrue_ends(job, GOOD[:2], people)) == []


def test_lost_and_duplicated_submits_are_found() -> None:
    tally = Tally(acknowledged={"a": "1", "b": "2", "c": "3"})
    fine = compare([("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")], tally, 1)
    assert (fine.lost, fine.duplicated) == ((), ())
    wrong = compare([("a", "1"), ("b", "2"), ("b", "5")], tally, 1)
    assert [words.split()[1] for words in wrong.lost] == ["b", "c"]
    assert wrong.duplicated == ("b is there 2 times",)


def test_a_seed_decides_the_strikes_and_nobody_suffers_two_at_once() -> None:
    first, again = (list(islice(strikes(3, ["a", "b"], 20.0), 300)) for _ in range(2))
    assert first == again
    assert first != list(islice(strikes(4, ["a", "b"], 20.0), 300))
    over = dict[str, float]()
    for strike in first:
        assert over.get(strike.target, 0.0) < strike.at
        over[strike.target] = strike.at + strike.seconds


def test_a_limit_that_does_not_hold_stands_out_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(figures.FILE, str(tmp_path / "figures"))
    figures.at_least("kills", 1000, 1000)
    figures.none("lost", 2)
    kept = figures.read(tmp_path / "figures")
    assert [figure.held for figure in kept] == [True, False]
    assert figures.table(kept).splitlines()[1:] == ["kills   1,000  ≥ 1,000", "lost        2        0  NOT HELD"]
