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
from ebbtide_core.model.types import CheckpointFacts, JobId, NodeId, RefusalCause
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.api.views import event_message
from ebbtide_master.identity.visibility import HIDERS, NOT_SHOWN, redact
from ebbtide_master.store.journal import StoredEvent
from ebbtide_protos.v1 import client_pb2

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


def test_every_kind_that_is_told_is_one_that_there_is():
    from ebbtide_master.identity.visibility import _EVENTS

    assert set(_EVENTS) <= set(EVENT_TYPES)
    assert encode(replace(TELLING[0], user="bob"))["user"] == "bob"
