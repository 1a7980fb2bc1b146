"""The page of the events: what its address means, what comes, and what others' events show."""

import asyncio
import json

import pytest
from ebbtide_core.events import EVENT_TYPES
from ebbtide_protos.v1 import client_pb2
from ebbtide_web import streams
from ebbtide_web.pages import events as events_page
from ebbtide_web.pages.events import SUBJECTS, WantedEvents, in_words

from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import a_job


def test_every_kind_of_event_is_about_one_subject_and_is_written_as_people_write():
    listed = [kind for kinds in SUBJECTS.values() for kind in kinds]
    assert sorted(listed) == sorted(EVENT_TYPES)
    assert "NodeDrained" in SUBJECTS["nodes"]
    assert "AttemptPlaced" in SUBJECTS["jobs"]
    assert "MasterStarted" in SUBJECTS["cluster"]
    assert (in_words("AttemptPlaced"), in_words("<b>")) == ("Attempt placed", "<b>")


def test_an_address_is_a_query_and_what_makes_no_sense_is_as_if_it_were_not_there():
    wanted = WantedEvents.read({"about": "nodes", "job": " 17 ", "node": "n1", "since": "10.5", "until": "20"})
    assert wanted == WantedEvents(about="nodes", job="17", node="n1", since=10.5, until=20.0)
    assert list(wanted.request(before=5).kinds) == list(SUBJECTS["nodes"])
    assert list(WantedEvents(about="nodes", kind="JobSubmitted").request().kinds) == ["JobSubmitted"]
    nonsense = {"about": "x", "kind": "X", "job": "a\0b", "since": "nan", "until": "1e999"}
    assert WantedEvents.read(nonsense) == WantedEvents()
    assert WantedEvents.read({"since": "-5", "until": "9" * 99}) == WantedEvents()


async def test_events_come_as_they_happen_and_older_ones_a_page_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(events_page, "EVENTS_S", 0.05)
    monkeypatch.setattr(events_page, "PAGE", 3)
    async with a_stage(tmp_path, monkeypatch) as stage:
        jobs = [await a_job(stage, name=f"job-{n}") for n in range(5)]
        ann = await stage.logged_in("ann")
        stream = await ann.stream("/stream/events?kind=JobSubmitted")
        first = await stream.until(lambda name, _: name == "events")
        assert [event["job"] for event in first["events"]] == jobs[:1:-1]
        rest = (await ann.get(f"/events/older?kind=JobSubmitted&before={first['older']}")).json
        assert ([event["job"] for event in rest["events"]], rest["older"]) == (jobs[1::-1], None)
        new = await a_job(stage)
        added = await stream.until(lambda name, _: name == "added")
        assert ([event["job"] for event in added["events"]], added["left_out"]) == ([new], False)
        stream.close()
        assert (await ann.get("/events/older?before=x")).status == 400


async def test_what_is_over_by_the_clock_is_asked_for_once(tmp_path, monkeypatch):
    paused = []

    async def pause(seconds):
        paused.append(seconds)
        await asyncio.sleep(0.01)
        return True

    monkeypatch.setattr(events_page, "pause", pause)
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann, asked, call = await stage.logged_in("ann"), [], stage.dashboard.master.call

        async def counted(method, request, token):
            asked.append(method)
            return await call(method, request, token)

        monkeypatch.setattr(stage.dashboard.master, "call", counted)
        stream = await ann.stream("/stream/events?until=1000000000")
        await stream.until(lambda name, _: name == "events")
        async with asyncio.timeout(30):
            while len(paused) < 5:
                await asyncio.sleep(0.01)
        stream.close()
        assert set(paused) == {streams.PING_S}
        assert asked.count("QueryEvents") == 1


async def test_of_very_many_new_events_only_the_newest_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(events_page, "EVENTS_S", 0.05)
    monkeypatch.setattr(events_page, "PAGE", 2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        stream = await ann.stream("/stream/events?about=jobs")
        await stream.until(lambda name, _: name == "events")
        tasks = [client_pb2.ArrayTask(index=index) for index in range(9)]
        spec = (
            await stage.master.ask.ShowJob(
                client_pb2.JobRequest(job_id=await a_job(stage)), metadata=stage.bearer("ann")
            )
        ).spec
        await stage.master.ask.Submit(client_pb2.SubmitRequest(spec=spec, tasks=tasks), metadata=stage.bearer("ann"))
        added = await stream.until(lambda name, data: name == "added" and data["left_out"])
        assert len(added["events"]) == 2
        stream.close()


async def test_of_others_events_is_shown_what_the_master_shows(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job = await a_job(stage, command=["secret-command"], name="train")
        bob, ann = await stage.logged_in("bob"), await stage.logged_in("ann")
        theirs = (await bob.get(f"/events/older?job={job}&before=0")).json["events"]
        own = (await ann.get(f"/events/older?job={job}&before=0")).json["events"]
        assert [event["id"] for event in theirs] == [event["id"] for event in own]
        assert "secret" not in json.dumps(theirs)


@pytest.mark.parametrize("kind", ["AttemptPlaced", "Nothing"])
async def test_the_page_of_the_events_offers_all_kinds(tmp_path, monkeypatch, kind):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        text = (await ann.page(f"/events?kind={kind}")).body.decode()
        assert all(f'value="{name}"' in text for name in EVENT_TYPES)
        assert (f'value="{kind}" selected' in text) == (kind in EVENT_TYPES)
