"""What users see of the events of others' jobs: enough to follow the queue, and to simulate it again."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import EVENT_TYPES
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.events.logs import LogMatch
from ebbtide_core.model.log_rules import LogAction
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    Allocation,
    CheckpointFacts,
    ExitFacts,
    JobId,
    NodeAllocation,
    NodeId,
    ProgressFacts,
    RefusalCause,
    StopCause,
)
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.api.views import event_message
from ebbtide_master.identity.visibility import HIDERS, NOT_SHOWN, redact
from ebbtide_master.store.journal import StoredEvent
from ebbtide_protos.v1 import client_pb2, job_pb2
from google.protobuf.message import Message

from tests.master.store.test_golden_journals import GOLDEN, golden

JOURNALS = sorted(path.stem for path in GOLDEN.glob("*.sql"))


def seen_by(user: str, event: e.Event, owner: str = "ann") -> client_pb2.Event:
    return redact(event_message(StoredEvent(1, 1.0, event)), user, lambda id: owner)


@pytest.fixture(params=JOURNALS)
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[StoredEvent]]:
    with golden(request.param, tmp_path / "journal.db") as store:
        yield list(store.events())


def test_what_is_left_of_others_events_still_folds_to_the_same_queue(lines):
    whole, hidden = Cluster(create_policy("fitgpp", {})), Cluster(create_policy("fitgpp", {}))
    for line in lines:
        whole.replay(line.event, line.time)
        message = redact(event_message(line), "nobody", lambda id: "somebody")
        assert message.text
        hidden.replay(decode_event(message.kind, json.loads(message.json)), line.time)
    assert [(job.id, job.state, job.gpus_min, job.times.ran_s) for job in hidden.state.jobs.values()] == [
        (job.id, job.state, job.gpus_min, job.times.ran_s) for job in whole.state.jobs.values()
    ]
    assert all(job.spec.command == (NOT_SHOWN,) and not job.spec.env for job in hidden.state.jobs.values())


def test_ones_own_events_are_shown_as_they_are(lines):
    for line in lines:
        assert redact(event_message(line), "ann", lambda id: "ann") == event_message(line)


CANARY = "CANARY /home/ann"
TELLING = [
    e.JobSubmitted(
        JobId("1"), JobSpec(command=(CANARY,), workdir=CANARY, env={"K": CANARY}, script=CANARY, output=CANARY), "ann"
    ),
    e.AttemptRefused(JobId("1"), 1, RefusalCause.BAD_JOB, CANARY),
    e.LogMatched(JobId("1"), 1, NodeId("n1"), LogMatch(CANARY, LogAction.NOTIFY, CANARY)),
    e.CheckpointPublished(JobId("1"), 1, CheckpointFacts(1, 1, CANARY, verified=True)),
    e.NodeExcluded(JobId("1"), NodeId("n1"), CANARY),
]


@pytest.mark.parametrize("event", TELLING, ids=lambda event: type(event).__name__)
def test_words_and_paths_of_others_jobs_are_not_told(event):
    assert CANARY in str(seen_by("ann", event))
    assert CANARY not in str(seen_by("bob", event))


@pytest.mark.parametrize(
    "event",
    [e.RunForgotten("ann", CANARY, 1.0, 1.0), e.RateForgotten("1", "ann", CANARY, 720720, 1, True, 1.0, 3)],
    ids=lambda event: type(event).__name__,
)
def test_what_a_job_ran_that_is_forgotten_is_told_its_user_only(event):
    assert CANARY in str(seen_by("ann", event))
    assert CANARY not in str(seen_by("bob", event))


def test_of_a_kind_of_event_that_nobody_looked_at_nothing_is_told(monkeypatch):
    monkeypatch.setattr("ebbtide_master.identity.visibility._EVENTS", {})
    message = seen_by("bob", e.ResumeRequested(JobId("1")))
    assert (message.kind, message.job_id, message.text, message.json) == ("ResumeRequested", "1", "", "")


def test_events_of_nobodys_job_are_somebody_elses():
    hidden = redact(event_message(StoredEvent(1, 1.0, TELLING[0])), "", lambda id: None)
    assert CANARY not in str(hidden)


def test_a_field_of_a_job_that_nobody_looked_at_is_hidden():
    job = client_pb2.Job(job_id="1", user="ann", pid=7, effect="", reason="attempt 1 'said this'", attempt=1)
    HIDERS[client_pb2.Job](job, "bob", lambda id: "ann")
    assert (job.job_id, job.user, job.pid, job.reason, job.attempt) == ("1", "ann", 0, "", 1)


NO_WORDS = {"job_id", "state", "held_by", "remaining_from", "pool", "node", "job_ids", "after", "preempts", "supplies"}
"""Fields of an explanation that are no words about the job: ids, names, and how the supplies of its pool are."""


def filled(message: Message) -> Message:
    """The message with a path of the job in every string, and one of everything that may be repeated."""
    for field in message.DESCRIPTOR.fields:
        if field.name in NO_WORDS or (field.name == "nodes" and field.message_type is None):
            continue
        inner = getattr(message, field.name)
        if field.message_type is not None and field.is_repeated:
            filled(inner.add())
        elif field.message_type is not None:
            inner.SetInParent()
            filled(inner)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            inner.append(CANARY)
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, CANARY)
    return message


def test_no_field_of_an_explanation_tells_others_what_a_job_wrote():
    told = filled(client_pb2.Explanation(job_id="1", state="PENDING"))
    words = {"reason", "needs", "basis", "no_effect", "obstacle"}
    assert all(f'{name}: "{CANARY}"' in str(told) for name in words)
    assert str(told).count(CANARY) >= 8
    assert redact(filled(client_pb2.Explanation(job_id="1", state="PENDING")), "ann", lambda id: "ann") == told
    assert CANARY not in str(redact(told, "bob", lambda id: "ann"))


@pytest.mark.parametrize(
    ("standing", "shown"),
    [
        ({"held_by": "system"}, False),
        ({"attempt": 1}, False),
        ({"held_by": "user"}, True),
        ({"held_by": "user", "own_reason": True}, False),
        ({}, True),
    ],
)
def test_the_reason_that_a_list_hides_is_hidden_in_an_explanation_and_its_forecasts_too(standing, shown):
    unknown = client_pb2.Forecast(basis="not known: loss of layer 7")
    told = client_pb2.Explanation(
        job_id="1", state="PENDING", reason="loss of layer 7", forecast=unknown, what_if=unknown, **standing
    )
    listed = client_pb2.Job(user="ann", state=job_pb2.JOB_STATE_PENDING, reason=told.reason, **standing)
    redact(told, "bob", lambda id: "ann")
    assert (told.reason != "", "layer" in told.forecast.basis, "layer" in told.what_if.basis) == (shown,) * 3
    assert redact(listed, "bob", lambda id: "ann").reason == told.reason


def test_how_a_start_is_known_is_told_whatever_the_reason_is():
    seen = client_pb2.Forecast(start_at=5.0, basis="by progress and earlier runs", after=["2"], nodes=["n1"])
    told = client_pb2.Explanation(job_id="1", state="PENDING", attempt=1, forecast=seen)
    assert redact(told, "bob", lambda id: "ann").forecast == seen


@pytest.mark.parametrize(
    "event",
    [
        e.AttemptPlaced(JobId("1"), 2, Allocation((NodeAllocation(NodeId("n1")),)), "there is room", waited=CANARY),
        e.RoomClaimed(JobId("1"), Allocation((NodeAllocation(NodeId("n1")),)), "there is room", CANARY),
        e.ReturnRequested(JobId("1"), 1, "swapped in", waited=CANARY),
        e.HoldRequested(JobId("1"), CANARY),
        e.CancelRequested(JobId("1"), waited=CANARY),
        e.SuspendRequested(JobId("1"), CANARY),
        e.StopRequested(JobId("1"), 1, StopCause.BROKEN, 5.0, f"node n2 did not start its part: {CANARY}"),
        e.StopRequested(JobId("1"), 1, StopCause.SUSPENDED, 5.0, f"paused at 100 steps: {CANARY} 0.5 is number 3 of 5"),
        e.AttemptExited(JobId("1"), 1, ExitFacts(), ProgressFacts(1, metrics={CANARY: 0.5})),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_reason_that_was_hidden_is_not_told_by_what_came_of_it(event):
    assert CANARY in seen_by("ann", event).json
    hidden = seen_by("bob", event)
    assert CANARY not in str(hidden)
    assert hidden.text


def test_every_kind_that_is_told_is_one_that_there_is():
    from ebbtide_master.identity.visibility import _EVENTS

    assert set(_EVENTS) <= set(EVENT_TYPES)
    assert encode(replace(TELLING[0], user="bob"))["user"] == "bob"
