"""What a job says of itself, sense and nonsense."""

import json
import socket

import pytest
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.status import Progress, PublishedCheckpoint, Sdk


@pytest.fixture
def job():
    """The job's end of its socket, and the reports at the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    with ours, theirs:
        yield theirs, Reports(ours)


def hear(job, *messages: object) -> Reports:
    sender, reports = job
    for message in messages:
        sender.send(message if isinstance(message, bytes) else json.dumps(message).encode())
    reports.drain()
    return reports


PROGRESS = {"kind": "progress", "rank": 0, "step": 12, "total": 100, "loss": 0.5}
CHECKPOINT = {"kind": "checkpoint", "rank": 0, "step": 12, "bytes": 5, "path": "/c/step", "verified": True}


def test_the_newest_progress_counts(job):
    assert hear(job, PROGRESS, PROGRESS | {"step": 13}).progress == Progress(13, 100, 0.5)


def test_a_total_and_a_loss_may_be_missing(job):
    assert hear(job, {"kind": "progress", "rank": 0, "step": 1}).progress == Progress(1)


def test_metrics_are_numbers_or_have_diverged(job):
    told = {"accuracy": 0.5, "loss": None, "steps": 3, "name": "x", "a\x1b[2J": 1.0, "n" * 100: 1.0}
    progress = hear(job, PROGRESS | {"metrics": told}).progress
    assert progress.metrics == {"accuracy": 0.5, "steps": 3.0, "n" * 64: 1.0}
    assert progress.diverged == ["loss", "name"]
    assert hear(job, PROGRESS | {"metrics": ["x"]}).progress.metrics == {}
    many = {f"m{number}": 1.0 for number in range(100)}
    assert len(hear(job, PROGRESS | {"metrics": many}).progress.metrics) == 32


def test_only_rank_0_speaks_of_progress_and_acknowledges(job):
    reports = hear(job, PROGRESS | {"rank": 1}, {"kind": "acknowledge", "rank": 1, "step": 1})
    assert (reports.progress, reports.acknowledged) == (None, False)
    assert hear(job, {"kind": "acknowledge", "rank": 0, "step": 1}).acknowledged


def test_any_rank_may_say_that_it_was_asked(job):
    assert not hear(job).asked
    assert hear(job, {"kind": "asked", "rank": 3}).asked


def test_checkpoints_are_counted_and_the_newest_is_known(job):
    reports = hear(job, CHECKPOINT, CHECKPOINT | {"step": 13})
    assert (reports.checkpoints, reports.checkpoint) == (2, PublishedCheckpoint(13, 5, "/c/step", True))


def test_a_checkpoint_tells_of_steps_that_progress_left_out(job):
    assert hear(job, PROGRESS, CHECKPOINT | {"step": 15}).progress == Progress(15, 100, 0.5)
    assert hear(job, CHECKPOINT | {"step": 14}).progress == Progress(15, 100, 0.5)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 20_000,
        b"12",
        b"null",
        {},
        {"kind": ["progress"]},
        PROGRESS | {"step": "12"},
        PROGRESS | {"step": 1.5},
        PROGRESS | {"step": True},
        PROGRESS | {"step": None},
        PROGRESS | {"step": 2**63},
        CHECKPOINT | {"bytes": -1},
        CHECKPOINT | {"path": 7},
        CHECKPOINT | {"path": "a\x1b[2J"},
        CHECKPOINT | {"step": None},
    ],
)
def test_nonsense_changes_nothing(job, nonsense):
    reports = hear(job, nonsense)
    assert (reports.progress, reports.checkpoint, reports.asked, reports.acknowledged) == (None, None, False, False)


@pytest.mark.parametrize(
    ("loss", "shown"), [(b"NaN", None), (b"Infinity", None), (b"1" * 400, None), (b'"low"', None), (b"2", 2.0)]
)
def test_a_loss_is_shown_if_it_is_a_number(job, loss, shown):
    reports = hear(job, b'{"kind": "progress", "rank": 0, "step": 1, "loss": %s}' % loss)
    assert reports.progress == Progress(1, None, shown)


def test_an_sdk_names_its_version_and_nonsense_changes_nothing(job):
    told = {"kind": "sdk", "rank": 0, "version": "9.1", "contract": 2}
    assert hear(job).sdk is None
    assert hear(job, told).sdk == Sdk("9.1", 2)
    for nonsense in ({"version": 9}, {"version": "9\n"}, {"contract": "2"}, {"contract": None}, {"rank": 1}):
        assert hear(job, told | {"version": "8"} | nonsense).sdk == Sdk("9.1", 2)
    assert hear(job, told | {"version": "v" * 1000}).sdk == Sdk("v" * 64, 2)
