"""The page of the timeline: its windows, what it draws, and how seldom the master is asked."""

import asyncio
import time

import pytest
from ebbtide_protos.v1 import timeline_pb2
from ebbtide_web.pages import timeline as timeline_page
from ebbtide_web.pages.timeline import PAGE, PARTS, WINDOWS, TimelineAnswers, WantedTimeline, timeline_facts
from ebbtide_web.reach import AwayError, MasterRefusedError

from tests.dashboard.hostile import CORPUS
from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import a_job
from tests.master.world import RUNNING

NOW = 1_795_829_570.0


class AskedMaster:
    """Answers with one lane, and counts how often it is asked."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked = list(errors), list[timeline_pb2.QueryTimelineRequest]()

    async def call(self, method, request, token):
        assert (method, token) == ("QueryTimeline", "anybody's")
        self.asked.append(request)
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop()
        return timeline_pb2.QueryTimelineReply(lanes=[timeline_pb2.TimelineLane(node="n1")], total=1, done=1.0)


def answers(master: AskedMaster) -> TimelineAnswers:
    return TimelineAnswers(master, lambda: "anybody's", lambda: NOW)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_that_ends_now_stays_where_it_is_until_time_has_gone_through_its_room(window):
    since, until = WantedTimeline(window).bounds(NOW)
    step = WINDOWS[window] / 12
    assert until - since == WINDOWS[window]
    assert since < NOW < until <= NOW + step
    assert WantedTimeline(window).bounds(until - 0.001) == (since, until)
    assert WantedTimeline(window).bounds(until) == (since + step, until + step)


def test_an_address_says_lanes_filters_and_a_window_and_what_makes_no_sense_is_as_if_it_were_not_there():
    query = {"by": "job", "window": "week", "node": "n1", "user": "ann", "pool": "big", "page": "2"}
    wanted = WantedTimeline.read(query)
    assert wanted == WantedTimeline("week", "job", "n1", "ann", "big", page=2)
    request = wanted.request(NOW)
    assert (request.lanes, request.first, request.limit) == (timeline_pb2.TIMELINE_LANES_JOBS, 2 * PAGE, PAGE)
    assert (request.node, request.of_user, request.pool) == ("n1", "ann", "big")
    chosen = WantedTimeline.read({"since": "1000", "until": "2000"})
    assert (chosen.live, chosen.bounds(NOW)) == (False, (1000.0, 2000.0))
    for wrong in ({"since": "2000", "until": "1000"}, {"since": "1"}, {"since": "1", "until": "9e9"}, {"until": "nan"}):
        assert WantedTimeline.read(wrong) == WantedTimeline()
    assert WantedTimeline.read({"by": "moon", "window": "year", "page": "-1", "node": "a\nb"}) == WantedTimeline()


def test_what_goes_on_has_no_end_so_that_the_page_draws_it_up_to_now():
    span = timeline_pb2.TimelineSpan(
        start=NOW - 100.04, end=NOW, open=True, doing=timeline_pb2.TIMELINE_DOING_COMPUTING, job_id="7", user="ann",
        count=1, gpus=0.5,
    )  # fmt: skip
    lane = timeline_pb2.TimelineLane(node="n1", gpu_index=3, spans=[span])
    reply = timeline_pb2.QueryTimelineReply(lanes=[lane], total=101, edge=NOW, done=1.0)
    facts = timeline_facts(WantedTimeline(), (NOW - 3600, NOW + 60), reply)
    assert (facts["edge"], facts["pages"], facts["known_since"]) == (None, 2, None)
    (reported,) = facts["lanes"][0]["spans"]
    assert (reported["start"], reported["end"], reported["doing"]) == (NOW - 100.0, None, "computing")
    assert (
        timeline_facts(WantedTimeline(), (0.0, 1.0), timeline_pb2.QueryTimelineReply(edge=5.0, done=0.999))["done"]
        == 0.99
    )


def test_strips_are_asked_for_in_parts_and_say_per_cent_of_the_gpus_that_were_there():
    wanted = WantedTimeline.read({"by": "node", "node": "n1", "pool": "big"})
    request = wanted.request(NOW)
    assert (request.lanes, request.buckets, request.node) == (timeline_pb2.TIMELINE_LANES_NODES, PARTS, "n1")
    assert WantedTimeline.read({"by": "pool", "node": "n1"}).request(NOW).node == "", "a pool is all of its nodes"
    heat = timeline_pb2.TimelineHeat(
        present=[0.0, 4.0, 8.0], held=[0.0, 1.0, 8.0], foreign=[0, 0, 0.5], unavailable=[0, 4, 0]
    )
    lane = timeline_pb2.TimelineLane(node="n1", pool="big", heat=heat, gpus=8)
    facts = timeline_facts(wanted, (0.0, 60.0), timeline_pb2.QueryTimelineReply(lanes=[lane], total=1, done=1.0))
    assert (facts["parts"], facts["lanes"][0]["gpus"]) == (PARTS, 8)
    assert facts["lanes"][0]["heat"] == {
        "held": [None, 25, 100], "foreign": [None, 0, 6], "unavailable": [None, 100, 0],
    }  # fmt: skip


def test_while_the_history_lags_it_is_drawn_up_to_where_it_goes_and_the_page_says_since_when_all_is_known():
    reply = timeline_pb2.QueryTimelineReply(edge=NOW - 60, done=0.4, known_since=NOW - 1000, problem="the disk is full")
    facts = timeline_facts(WantedTimeline(), (NOW - 3600, NOW), reply)
    assert (facts["edge"], facts["done"], facts["problem"]) == (NOW - 60, 0.4, "the disk is full")
    assert facts["known_since"] == NOW - 1000
    assert timeline_facts(WantedTimeline(), (NOW - 500, NOW), reply)["known_since"] is None


async def test_the_master_is_asked_once_for_all_who_look_at_the_same_and_not_again_before_a_while(monkeypatch):
    master = AskedMaster()
    kept = answers(master)
    found = await asyncio.gather(*(kept.answer(WantedTimeline()) for _ in range(5)))
    assert len(master.asked) == 1
    assert all(facts["total"] == 1 and wait_s > 0.0 for facts, wait_s in found)
    await kept.answer(WantedTimeline())
    assert len(master.asked) == 1
    await kept.answer(WantedTimeline(window="day"))
    assert len(master.asked) == 2
    monkeypatch.setattr(timeline_page, "LEAST_KEPT_S", 0.0)
    monkeypatch.setattr(timeline_page, "MOST_KEPT_S", 0.0)
    monkeypatch.setattr(timeline_page, "REST", 0)
    await kept.answer(WantedTimeline(window="hour"))
    await kept.answer(WantedTimeline(window="hour"))
    assert len(master.asked) == 4
    assert len(kept._kept) == 3, "and answers that are over are not kept"
    await kept.close()


async def test_when_the_master_was_away_it_is_asked_again():
    master = AskedMaster(AwayError("it was killed"))
    kept = answers(master)
    with pytest.raises(AwayError):
        await kept.answer(WantedTimeline())
    facts, _ = await kept.answer(WantedTimeline())
    assert facts["total"] == 1
    await kept.close()


async def test_a_window_that_the_master_refused_is_not_asked_for_again_at_once():
    master = AskedMaster(MasterRefusedError("since: there is too much in this window", 400))
    kept = answers(master)
    for _ in range(3):
        with pytest.raises(MasterRefusedError, match="too much"):
            await kept.answer(WantedTimeline())
    assert len(master.asked) == 1
    await kept.close()


async def test_whoever_stops_to_look_takes_the_answer_from_nobody_else():
    kept = answers(master := AskedMaster())
    first = asyncio.create_task(kept.answer(WantedTimeline()))
    second = asyncio.create_task(kept.answer(WantedTimeline()))
    await asyncio.sleep(0)
    first.cancel()
    facts, _ = await second
    assert (facts["total"], len(master.asked)) == (1, 1)
    await kept.close()


async def test_the_page_draws_a_job_on_its_gpu_as_everybody_may_see_it(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job = await a_job(stage, "ann")
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        monkeypatch.setattr(timeline_page, "LEAST_KEPT_S", 0.05)
        monkeypatch.setattr(timeline_page, "MOST_KEPT_S", 0.05)
        bob = await stage.logged_in("bob")
        page = await bob.page("/timeline?window=hour")
        assert page.status == 200
        for by, lanes in (("gpu", 2), ("job", 1)):
            before = time.time()
            events = await bob.stream(f"/stream/timeline?window=hour&by={by}")
            found = await events.until(
                lambda _, data, lanes=lanes: len(data["lanes"]) == lanes and data["lanes"][0]["spans"]
                and data["lanes"][0]["spans"][-1]["doing"] == "computing"
            )  # fmt: skip
            span = found["lanes"][0]["spans"][-1]
            assert (span["job"], span["user"], span["end"]) == (job, "ann", None)
            assert found["since"] < before < found["until"]
            events.close()
        for by in ("pool", "node"):
            events = await bob.stream(f"/stream/timeline?window=hour&by={by}")
            found = await events.until(lambda _, data: data["lanes"] and any(data["lanes"][0]["heat"]["held"]))
            assert found["lanes"][0]["gpus"] == 2
            assert "ann" not in str(found)
            events.close()


def test_hostile_texts_of_an_address_are_only_looked_for():
    for text in CORPUS:
        wanted = WantedTimeline.read(
            dict.fromkeys(("by", "window", "node", "user", "pool", "since", "until", "page"), text)
        )
        assert (wanted.lanes, wanted.window, wanted.live) == ("gpu", "6h", True)
        assert len(wanted.node) <= 64
