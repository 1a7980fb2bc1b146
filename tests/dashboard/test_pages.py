"""What pages get: the same for all, computed once, safe to show, and going on when the master was away."""

import asyncio
import base64
import json
import time
import unicodedata
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import pytest
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2, timeline_pb2, usage_pb2, user_pb2
from ebbtide_web import reach, streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import HERE, Templates
from ebbtide_web.board import feed as feeds
from ebbtide_web.board.picture import ClusterPicture
from ebbtide_web.board.shared_page import SharedPage, cleaned, encoded
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.pages import admin as admin_page
from ebbtide_web.pages import log as log_page
from ebbtide_web.pages import queue as queue_page
from ebbtide_web.pages.array import WantedTasks, array_facts
from ebbtide_web.pages.cluster import WantedCluster
from ebbtide_web.pages.events import WantedEvents, page_facts
from ebbtide_web.pages.job import explanation_facts, job_facts, story_facts
from ebbtide_web.pages.log import LONGEST_LINE, Lines
from ebbtide_web.pages.node import node_facts
from ebbtide_web.pages.nodes import WantedNodes
from ebbtide_web.pages.queue import WantedJobs
from ebbtide_web.pages.replays import Replayed
from ebbtide_web.pages.timeline import WantedTimeline, timeline_facts
from ebbtide_web.pages.usage import WantedUsage, usage_facts
from ebbtide_web.pages.what_if import OfferedOption, WantedWhatIf, what_if_facts
from ebbtide_web.reach import AwayError

from tests.dashboard.hostile import CORPUS, SAFE
from tests.dashboard.stage import a_stage, answer_reads
from tests.dashboard.test_access import a_job
from tests.master.world import RUNNING, a_master, share, until_node

STATE = job_pb2.JobState.Value


# --- one computation for all ---


async def test_many_viewers_get_the_same_frame_which_is_made_once(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann, feed = await stage.logged_in("ann"), stage.dashboard.feed
        monkeypatch.setattr("ebbtide_web.access.sessions.MOST_STREAMS", 100)
        viewers = [await ann.stream("/stream/cluster") for _ in range(20)]
        for viewer in viewers:
            await viewer.until(lambda name, data: "sums" in data["cells"])
        encodings, made = [], feed.frames_made
        for module in ("board.picture", "pages.cluster"):
            counted = lambda value: (encodings.append(1), encoded(value))[1]  # noqa: E731
            monkeypatch.setattr(f"ebbtide_web.{module}.encoded", counted)
        await a_job(stage, name="new")
        reported = [await viewer.until(lambda name, data: "head" in data["cells"]) for viewer in viewers]
        assert all(each == reported[0] for each in reported)
        assert feed.frames_made - made <= 3
        assert len(encodings) <= 9, "of the few cells, each once, whoever looks"
        for viewer in viewers:
            viewer.close()


async def test_a_change_reaches_every_page_that_shows_the_job(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, ann = await a_job(stage), await stage.logged_in("ann")
        await agent.receive("launch")
        queue, own = await ann.stream("/stream/queue"), await ann.stream(f"/stream/jobs/{job}")
        await queue.until(lambda name, data: f"row:{job}" in data["cells"])
        await own.until(lambda name, data: name == "job")
        await agent.report(job, 1, RUNNING)
        row = await queue.until(lambda name, data: data["cells"].get(f"row:{job}", {}).get("state") == "RUNNING")
        await own.until(lambda name, data: name == "job" and data["state"] == "RUNNING")
        assert row["cells"][f"row:{job}"]["nodes"] == ["n1"]
        queue.close()
        own.close()


def test_a_viewer_that_is_one_version_behind_gets_what_changed_and_any_other_everything():
    async def play():
        page = SharedPage()
        page.put({"a": "1", "b": "2"})
        seen, first = await page.after(0, 1.0)
        page.put({"a": "1", "b": "3"})
        _, delta = await page.after(seen, 1.0)
        page.put({"a": "1"})
        _, full = await page.after(seen, 1.0)
        same = await page.after(page.version, 0.01)
        return [json.loads(each.split(b"data: ")[1]) for each in (first, delta, full)], same

    reported, same = asyncio.run(play())
    assert reported[0] == {"full": True, "gone": [], "cells": {"a": 1, "b": 2}}
    assert reported[1] == {"full": False, "gone": [], "cells": {"b": 3}}
    assert reported[2] == {"full": True, "gone": [], "cells": {"a": 1}}
    assert same == (3, None)


async def test_a_page_that_nobody_sees_is_not_made(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        viewer = await ann.stream("/stream/queue?user=ann")
        await viewer.next()
        assert list(stage.dashboard.feed._topics) == [WantedJobs(user="ann")]
        viewer.close()
        async with asyncio.timeout(30):
            while stage.dashboard.feed._topics:
                await asyncio.sleep(0.01)


# --- the master is away ---


async def test_when_the_master_was_away_pages_keep_what_they_had_and_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "RETRY_S", 0.05)
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage, name="kept"), await stage.logged_in("ann")
        page, own = await ann.stream("/stream/queue"), await ann.stream(f"/stream/jobs/{job}")
        await page.until(lambda name, data: f"row:{job}" in data["cells"])
        await own.until(lambda name, data: name == "job")
        before = time.time()
        await stage.stop_master()
        away = (await page.until(lambda name, data: data["cells"].get("away")))["cells"]["away"]
        assert before - 10 < away["since"] <= time.time()
        await own.until(lambda name, data: name == "away")
        fresh = await ann.stream("/stream/queue")
        cells = (await fresh.next())[1]["cells"]
        assert cells[f"row:{job}"]["name"] == "kept", "somebody who comes now sees the old, too"
        assert cells["away"]
        refused = await ann.post(f"/jobs/{job}/cancel")
        assert (refused.status, "does not answer" in refused.json["error"]) == (503, True)
        async with a_master(stage.home, guarded=True):
            back = await page.until(lambda name, data: "away" in data["cells"] and data["cells"]["away"] is None)
            assert back
            await own.until(lambda name, data: name == "job")
        for stream in (page, own, fresh):
            stream.close()


async def test_a_change_of_several_jobs_that_is_broken_off_says_of_each_what_became_of_it(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        jobs, ann = [await a_job(stage) for _ in range(4)], await stage.logged_in("ann")
        asked, call = list[str](), Dashboard.call

        async def call_until_it_dies(dashboard: Dashboard, session: Session, method: str, request: Any) -> Any:
            asked.append(request.job_id)
            if len(asked) == 2:
                raise AwayError("it was killed")
            return await call(dashboard, session, method, request)

        monkeypatch.setattr(Dashboard, "call", call_until_it_dies)
        reply = await ann.post("/jobs", {"verb": "hold", "ids": jobs})
        assert (reply.status, reply.json["done"], asked) == (200, 1, jobs[:2])
        words = [reply.json["refused"].get(job, "") for job in jobs]
        assert words[1].startswith("it is not known whether this was done")
        assert words[2:] == ["this was not asked for, as the master does not answer"] * 2
        assert words[0] == ""


# --- hostile text ---


def harmless(text: str) -> bool:
    """Whether nothing of it is obeyed by a terminal, or turns what follows around."""
    return all(unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for letter in set(text))


def every_text(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (key, *every_text(each))
    elif isinstance(value, list):
        for each in value:
            yield from every_text(each)


def test_the_corpus_is_large_enough():
    assert len(set(CORPUS)) >= 200


def test_hostile_text_is_harmless_in_everything_that_pages_read():
    for text in CORPUS:
        for value in told_with(text):
            assert "\n" not in value
            assert [found for found in every_text(json.loads(value)) if not harmless(found)] == [], ascii(text)


def told_with(text: str) -> list[str]:
    """Everything that the dashboard tells pages, with ``text`` wherever somebody may write something."""
    picture = ClusterPicture()
    gpu = client_pb2.BoardGpu(uuid=text, model=text, mem_bytes=100)
    holder = client_pb2.GpuHolder(job_id="1", share=share(1), mem_used_bytes=5)
    load = client_pb2.GpuLoad(state=client_pb2.GPU_STATE_ALLOCATED, holders=[holder], reserved=text, why=text)
    row = client_pb2.BoardJob(
        job_id="1", name=text, user=text, pool=text, reason=text, nodes=[text], state=STATE("JOB_STATE_RUNNING")
    )
    update = client_pb2.BoardUpdate(
        last=True, jobs=[row], nodes=[client_pb2.BoardNode(name=text, pool=text, gpus=[gpu])],
        loads=[client_pb2.BoardLoad(name=text, state="up", reason=text, gpus=[load])],
        queues=[client_pb2.BoardQueue(pool=text, job_ids=["1"], length=1, policy=text)],
        notices=client_pb2.BoardNotices(doubted=[text]),
    )  # fmt: skip
    picture.take(update, 0.0)
    spec = job_pb2.JobSpec(name=text, command=[text], workdir=text, group=text, env={text: ""})
    progress = job_pb2.Progress(step=1, metrics={text: float("nan")}, diverged=[text])
    job = client_pb2.Job(
        job_id="1", spec=spec, user=text, reason=text, state=STATE("JOB_STATE_FAILED"), progress=progress,
        params={text: text}, attempts=[client_pb2.AttemptSummary(attempt=1, outcome=text)],
        suspensions=[client_pb2.Suspension(reason=text, lost=text, hint=text, note=text)],
    )  # fmt: skip
    explanation = client_pb2.Explanation(reason=text, needs=text, basis=text, nodes=[client_pb2.NodeView(node=text)])
    event = client_pb2.Event(kind="AttemptExited", text=text)
    other = client_pb2.Event(kind=text, text=text, job_id=text, node=text)
    process = agent_pb2.GpuProcess(pid=1, user=text, job_id=text, command=text)
    info = agent_pb2.GpuInfo(uuid=text, model=text, pci_bus_id=text, unhealthy_reason=text)
    on_node = client_pb2.NodeGpu(info=info, reading=agent_pb2.GpuReading(processes=[process]), reserved=text)
    node = client_pb2.Node(
        name=text, hostname=text, state=text, reason=text, version=text, pool=text, moves_to=text, gpu_backend=text,
        cpu_limits=text, mem_limits=text, labels={text: text}, taints=[text], dead=text, gpus=[on_node],
        drain=client_pb2.NodeDrain(user=text, reason=text), strays=[client_pb2.Stray(job_id=text, kind=text)],
    )  # fmt: skip
    row = client_pb2.ArrayTaskRow(reason=text, params={text: text}, value=float("nan"))
    array = client_pb2.ShowArrayReply(
        job_id=text, user=text, name=text, states=b"\x03\x01", params=[text], metrics=[text], param=text, metric=text,
        x=[float("inf")], y=[float("nan")], rows=[row],
    )  # fmt: skip
    account = usage_pb2.UsageAccount(key=[text])
    usage = usage_pb2.UsageReply(accounts=[account], foreign_gpu_s={text: 1.0}, problems=[text])
    span = timeline_pb2.TimelineSpan(job_id=text, user=text, name=text, why=text)
    lane = timeline_pb2.TimelineLane(node=text, pool=text, job_id=text, user=text, name=text, spans=[span])
    timeline = timeline_pb2.QueryTimelineReply(lanes=[lane], problem=text)
    fate = client_pb2.NodeJob(job_id=text, name=text, user=text, fate=text, text=text)
    lines, rest = Lines().take(f"{text}\nnext {text}".encode("utf-8", "surrogatepass"))
    return [
        *WantedCluster().cells(picture, {}).values(),
        *WantedJobs().cells(picture, {"1": {"start": None, "basis": text}}).values(),
        encoded(job_facts(job, 0.0)),
        encoded(explanation_facts(explanation, 0.0)),
        encoded(story_facts([event])),
        encoded(array_facts(array, WantedTasks())),
        *WantedNodes().cells(picture, {}).values(),
        encoded(node_facts(client_pb2.NodeReply(node=node, jobs=[fate]))),
        encoded(page_facts(client_pb2.QueryEventsReply(events=[other]))),
        encoded(usage_facts(WantedUsage(), WantedUsage().edges(1e9), usage, usage_pb2.UsageReply())),
        encoded(timeline_facts(WantedTimeline(), (0.0, 1.0), timeline)),
        *admin_texts(text),
        encoded(what_if_facts(WantedWhatIf(), Replayed(hostile_facts(text), 1))),
        encoded(lines),
        encoded(rest),
    ]


def test_the_page_of_a_node_says_which_attempt_that_is_set_aside_holds_a_gpu():
    infos = [agent_pb2.GpuInfo(uuid=f"n1-{i}", index=i, healthy=True) for i in range(2)]
    gpus = [client_pb2.NodeGpu(info=info) for info in infos]
    stray = client_pb2.Stray(job_id="7", attempt=2, gpus=["n1-1"])
    found = node_facts(client_pb2.NodeReply(node=client_pb2.Node(name="n1", gpus=gpus, strays=[stray])))
    assert [gpu["unhealthy"] for gpu in found["gpus"]] == ["", "held by 7.2, which is set aside"]


def admin_texts(text: str) -> list[str]:
    """What the page for admins gets, with ``text`` wherever it shows something."""
    setting, pool = user_pb2.Setting(name=text, value=text, in_file=text), client_pb2.Pool(name=text, policy=text)
    found = user_pb2.ShowSettingsReply(settings=[setting], changed=[text], needs_restart=[text], problem=text)
    node = client_pb2.Node(name=text, state="down", reason=text, version=text)
    nodes = client_pb2.ListNodesReply(nodes=[node], doubted=[text], unheard=[text])
    tokens = user_pb2.ListTokensReply(tokens=[user_pb2.Token(id=text, user=text, label=text)])
    users = user_pb2.ListUsersReply(users=[user_pb2.User(name=text, role=text, account=text)])
    return [
        encoded(admin_page.settings_facts(found)),
        encoded(admin_page.user_facts(users)),
        encoded(admin_page.token_facts(tokens, "", all_users=True)),
        encoded(admin_page.node_facts(nodes)),
        encoded(admin_page.cluster_facts(client_pb2.ClusterInfo(version=text, pools=[pool]))),
    ]


def hostile_facts(text: str) -> dict[str, Any]:
    names = ("live", "since", "until", "gpus", "restart_cost_s", "skipped", "notes")
    return {**{key: {text: [text]} for key in names}, "simulated": [text]}


def test_hostile_text_stays_text_in_every_template():
    plain = pages_with(SAFE)
    for text in CORPUS:
        for page, same in zip(pages_with(text), plain, strict=True):
            for mark in ("<", ">", '"', "'"):
                assert page.count(mark) == same.count(mark), ascii(text)
            assert harmless(page.replace("\n", "")), ascii(text)


def pages_with(text: str) -> list[str]:
    """Every template with ``text`` wherever it shows something."""
    templates, kinds = Templates(cluster=text), {text: [(text, text)]}
    viewer = type("Viewer", (), {"csrf": text, "user": text, "role": text})()
    common = {"id": text, "name": text, "title": text, "words": text, "back": text, "kinds": kinds}
    offered = [OfferedOption(text, text, (text, "")), OfferedOption(text, text, ())]
    common |= {"policies": {text: offered}, "most": 4, "now": 1, "by": text}
    wanted = {
        "job.html": None, "message.html": None, "cluster.html": None, "node.html": None, "login.html": None,
        "array.html": None, "admin.html": None, "what_if.html": None,
        "usage.html": WantedUsage(window=text, by=text),
        "timeline.html": WantedTimeline(window=text, lanes=text, node=text, user=text, pool=text),
        "queue.html": WantedJobs(text=text),
        "nodes.html": WantedNodes(text=text), "events.html": WantedEvents(about=text, kind=text, job=text, node=text),
    }  # fmt: skip
    assert set(wanted) | {"base.html"} == {path.name for path in (HERE / "templates").iterdir()}
    return [templates.text(name, viewer, **common, wanted=each) for name, each in wanted.items()]


def test_what_is_shown_of_a_file_name_is_plain():
    assert cleaned({"a\x1b[2J": ["b\u202e", 3, None]}) == {"a[2J": ["b", 3, None]}


# --- lines of a log ---


def shown(data: bytes) -> list[str]:
    lines, rest = Lines().take(data)
    return ["".join(text for text, _ in line) for line in [*lines, *([rest] if rest else [])]]


def test_of_terminal_codes_only_colours_and_weight_are_left():
    (line,), rest = Lines().take(b"\x1b[1;31mred\x1b[0m plain \x1b]0;title\x07\x1b[2J\x1b[10;10Hhere\n")
    assert line == [["red", "c1 b"], [" plain here", ""]]
    assert rest is None


def test_a_progress_bar_is_one_line():
    assert shown(b" 10%\r 20%\r 30%\nend") == [" 30%", "end"]
    assert shown(b"windows\r\n") == ["windows"]


def test_a_style_goes_on_in_the_next_line_and_an_open_line_is_read_again():
    reader = Lines()
    (first,), rest = reader.take(b"\x1b[32mgreen\nstill")
    assert (first, rest) == ([["green", "c2"]], [["still", "c2"]])
    (second,), rest = reader.take(b" green\x1b[0m\n")
    assert (second, rest) == ([["still green", "c2"]], None)


def test_characters_that_come_in_pieces_are_whole():
    reader = Lines()
    assert reader.take("ü".encode()[:1]) == ([], None)
    assert reader.take("ü".encode()[1:] + b"\n")[0] == [[["ü", ""]]]


def test_a_line_without_end_is_cut_and_costs_no_memory():
    reader = Lines()
    for _ in range(50):
        _, rest = reader.take(b"x" * 100_000)
    assert sum(len(text) for text, _ in rest) <= LONGEST_LINE
    assert len(reader._rest) <= 2 * LONGEST_LINE


# --- the queue ---


def a_picture(count: int = 0) -> ClusterPicture:
    picture = ClusterPicture()
    rows = [
        client_pb2.BoardJob(job_id=str(n), name=f"job-{n}", user=f"user{n % 3}", pool="default",
                           state=STATE("JOB_STATE_PENDING"), gpus_min=share(1), gpus_max=share(1), priority=n % 90 + 1)
        for n in range(1, count + 1)
    ]  # fmt: skip
    queue = client_pb2.BoardQueue(pool="default", job_ids=[row.job_id for row in rows[:200]], length=count)
    picture.take(client_pb2.BoardUpdate(last=True, jobs=rows, queues=[queue]), 0.0)
    return picture


def rows_of(picture, **wanted):
    return json.loads(WantedJobs(**wanted).cells(picture, {})["page"])


def test_a_page_of_the_queue_has_at_most_so_many_rows_however_many_jobs_there_are():
    picture = a_picture(10_000)
    cells = WantedJobs(page=3).cells(picture, {})
    assert len(cells) == queue_page.PAGE + 2
    page = json.loads(cells["page"])
    assert (page["total"], page["pages"], page["page"]) == (10_000, 50, 3)
    assert rows_of(picture, page=9999)["page"] == 49


def test_filters_and_orders_do_as_they_say():
    picture = a_picture(30)
    assert rows_of(picture, user="user1")["total"] == 10
    assert rows_of(picture, text="JOB-7")["rows"] == ["7"]
    assert rows_of(picture, state="RUNNING")["total"] == 0
    assert rows_of(picture, sort="id", down=True)["rows"][:2] == ["30", "29"]
    assert rows_of(picture, sort="priority")["rows"][0] == "1"
    assert rows_of(picture)["tabs"] == {"unfinished": 30, "waiting": 30, "running": 0, "finished": 0}


def test_the_longest_wait_is_counted_to_one_moment_for_all_that_still_wait():
    picture = a_picture(4)
    told = {"1": (10.0, 100.0), "2": (5.0, 20.0), "3": (40.0, 0.0), "4": (60.0, 100.0)}
    for id, (waiting_s, at) in told.items():
        picture.jobs[id].waiting_s, picture.jobs[id].at = waiting_s, at
    picture.jobs["3"].state = STATE("JOB_STATE_RUNNING")
    assert rows_of(picture, sort="waited", down=True)["rows"] == ["2", "4", "3", "1"]


def test_the_sums_tell_those_that_wait_from_those_that_are_held():
    picture = a_picture(5)
    picture.jobs["2"].held_by = "user"
    sums = json.loads(WantedCluster().cells(picture, {})["sums"])
    assert (sums["waiting"], sums["held"]) == (4, 1)


def test_the_tasks_of_an_array_are_one_row():
    picture = ClusterPicture()
    states = ["RUNNING", "RUNNING", "PENDING", "COMPLETED"]
    rows = [
        client_pb2.BoardJob(job_id=f"5.{n}", array="5", index=n, name="sweep", state=STATE(f"JOB_STATE_{state}"))
        for n, state in enumerate(states)
    ]
    picture.take(client_pb2.BoardUpdate(last=True, jobs=rows), 0.0)
    cells = WantedJobs().cells(picture, {})
    assert json.loads(cells["page"])["rows"] == ["5"]
    assert json.loads(cells["row:5"])["tasks"] == {"RUNNING": 2, "PENDING": 1}
    for wanted in (WantedJobs(), WantedJobs(state="PENDING"), WantedJobs(tab="finished")):
        row = json.loads(wanted.cells(picture, {})["row:5"])
        assert row["left"] == {"tasks": 3, "run": 2}, "whatever the filter shows of them"


# --- the cluster ---


def test_on_a_map_no_two_jobs_have_the_same_number_though_others_end():
    picture = a_picture(3)
    before = [picture.number(id) for id in ("1", "2", "3")]
    picture.take(client_pb2.BoardUpdate(last=True, jobs_gone=["1"]), 1.0)
    assert picture.number("4") not in before
    assert [picture.number(id) for id in ("2", "3")] == before[1:]


def test_a_gpu_that_reports_nonsense_is_drawn_within_the_bounds():
    gpus = [client_pb2.BoardGpu(uuid=f"g{n}", index=n, mem_bytes=1) for n in range(65)]
    loads = [client_pb2.GpuLoad(use=use, mem_used_bytes=2**60) for use in (1e9, -1e9, 0.5)]
    node = client_pb2.BoardNode(name="n1", gpus=gpus)
    picture = ClusterPicture()
    load = client_pb2.BoardLoad(name="n1", state="up", gpus=loads)
    picture.take(client_pb2.BoardUpdate(last=True, nodes=[node], loads=[load]), 0.0)
    packed = base64.b64decode(json.loads(WantedCluster().cells(picture, {})["node:n1"])["packed"])
    assert [tuple(packed[at : at + 3][1:]) for at in (0, 8, 16)] == [(100, 100), (0, 100), (50, 100)]


@pytest.mark.parametrize(
    "query", [{"page": "-1"}, {"page": "9" * 99}, {"page": "²"}, {"sort": "evil"}, {"show": "x"}, {"sort": "--id"}]
)
def test_a_query_that_makes_no_sense_is_as_if_it_were_not_there(query):
    assert WantedJobs.read(query) in (WantedJobs(), WantedJobs(down=True))


def test_a_query_says_what_it_was_read_from():
    wanted = WantedJobs(tab="finished", text="a b", user="ann", sort="gpus", down=True, page=2)
    assert WantedJobs.read(dict(parse_qsl(wanted.query()))) == wanted


# --- a job ---


async def test_a_waiting_job_says_why_and_when_it_may_start(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        first = await a_job(stage, gpus=2, time_limit_s=1000.0)
        await agent.receive("launch")
        await agent.report(first, 1, RUNNING)
        waiting, ann = await a_job(stage, gpus=2), await stage.logged_in("ann")
        events = await ann.stream(f"/stream/jobs/{waiting}")
        reported = await events.until(lambda name, _: name == "explained")
        events.close()
        assert reported["forecast"]["after"] == [first]
        assert reported["forecast"]["start"] == pytest.approx(time.time() + 1000, abs=30)
        assert reported["ahead"] == 0
        what_if = (await ann.get(f"/jobs/{waiting}/explain?gpus=1&priority=5")).json
        assert what_if["what_if"] is not None
        assert (await ann.get(f"/jobs/{waiting}/explain?gpus=x")).status == 400
        page = await ann.stream("/stream/queue")
        row = await page.until(lambda name, data: (data["cells"].get(f"row:{waiting}") or {}).get("forecast"))
        assert row["cells"][f"row:{waiting}"]["forecast"]["start"] == pytest.approx(
            reported["forecast"]["start"], abs=30
        )
        page.close()


async def test_the_log_of_a_job_comes_line_by_line_and_as_a_file(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, ann = await a_job(stage), await stage.logged_in("ann")
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        text = b"first\n\x1b[31msecond\x1b[0m\nhal"
        answering = asyncio.create_task(answer_reads(agent, text))
        log = await ann.stream(f"/stream/jobs/{job}/log")
        reported = await log.until(lambda name, data: name == "log")
        assert (reported["lines"], reported["open"]) == ([[["first", ""]], [["second", "c1"]]], [["hal", ""]])
        log.close()
        file = await ann.get(f"/jobs/{job}/log.txt?attempt=1")
        assert (file.status, file.body) == (200, text)
        assert file.headers["content-disposition"].startswith("attachment")
        answering.cancel()


class LogMaster:
    """Sends these chunks of a log, and then is away."""

    def __init__(self, *chunks: client_pb2.LogChunk) -> None:
        self.chunks = chunks

    async def stream(self, method, request, token):
        for chunk in self.chunks:
            yield chunk
        raise AwayError("it was killed")


async def test_a_log_that_is_shown_is_void_only_once_the_master_answers_again():
    session, request = Session("ann", "user", "secret", "id", time.monotonic() + 60), client_pb2.ReadLogsRequest()

    async def events_until_away(master: LogMaster) -> list[str]:
        found = []
        with suppress(AwayError):
            async for each in log_page._log_now(session, master, request):
                found += [each.decode().partition("\n")[0]]
        return found

    assert await events_until_away(LogMaster()) == []
    printed = client_pb2.LogChunk(attempt=1, data=b"up\n")
    assert await events_until_away(LogMaster(printed)) == ["event: begin", "event: log"]


async def test_the_log_of_a_job_on_a_silent_node_cuts_nobody_off_and_says_which_node_it_is(tmp_path, monkeypatch):
    for module, name in ((log_page, "AGAIN_S"), (streams, "REFUSED_S")):
        monkeypatch.setattr(module, name, 0.05)
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, ann = await a_job(stage), await stage.logged_in("ann")
        await agent.receive("launch")
        own, queue = await ann.stream(f"/stream/jobs/{job}"), await ann.stream("/stream/queue")
        await agent.report(job, 1, RUNNING)
        await own.until(lambda name, data: name == "job" and data["state"] == "RUNNING")
        await queue.until(lambda name, data: data["cells"].get(f"row:{job}", {}).get("state") == "RUNNING")
        reached, before = stage.dashboard.master._stub, len(queue.seen)
        agent.vanish()
        await until_node(stage.master.ask, "n1", "down", stage.tokens["ada"])
        log = await ann.stream(f"/stream/jobs/{job}/log")
        for _ in range(3):
            told = await log.until(lambda name, data: name in ("away", "refused"))
            assert told["words"] == "node n1 is not connected"
        download = (await ann.get(f"/jobs/{job}/log.txt")).json["error"]
        assert ("node n1 is not connected" in download, "the master does not answer" in download) == (True, False)
        new = await a_job(stage)
        await queue.until(lambda name, data: f"row:{new}" in data["cells"])
        assert stage.dashboard.master._stub is reached
        assert [data["cells"]["away"] for _, data in queue.seen[before:] if data["cells"].get("away")] == []
        assert "away" not in [name for name, _ in own.seen]
        for stream in (own, queue, log):
            stream.close()


async def test_one_reply_that_is_late_cuts_nobody_off(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        page = await ann.stream("/stream/cluster")
        await page.until(lambda name, data: data["cells"].get("sums"))
        master = stage.dashboard.master
        reached = master._stub

        async def thinks_long(*_):
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr("ebbtide_master.api.identity._in_parts", thinks_long)
            patched.setattr(reach, "REPLY_S", 0.1)
            with pytest.raises(AwayError):
                await master.call("ListUsers", user_pb2.ListUsersRequest(), stage.tokens["ada"])
        assert master._stub is reached
        page.close()


async def test_a_master_that_has_long_said_nothing_is_asked_over_another_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "RETRY_S", 0.05)
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        page = await ann.stream("/stream/queue")
        await page.until(lambda name, data: data["cells"].get("page"))
        with monkeypatch.context() as patched:
            patched.setattr(feeds, "SILENT_S", 0.05)
            reached = stage.dashboard.master._stub
            await a_job(stage)
            async with asyncio.timeout(30):
                while stage.dashboard.master._stub is reached:
                    await asyncio.sleep(0.01)
        job = await a_job(stage)
        await page.until(lambda name, data: f"row:{job}" in data["cells"])
        page.close()


async def test_a_fault_of_the_feed_ends_the_dashboard_rather_than_showing_what_is_not_so(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        page = await ann.stream("/stream/cluster")
        await page.next()
        monkeypatch.setattr(ClusterPicture, "take", lambda picture, update, now: 1 / 0)
        await a_job(stage)
        await page.ends()
        page.close()
        with pytest.raises(ZeroDivisionError):
            await stage.serving


async def test_a_connection_that_another_call_has_closed_is_opened_again_by_the_feed(tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "RETRY_S", 0.05)
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        first = await a_job(stage)
        page, own = await ann.stream("/stream/queue"), await ann.stream(f"/stream/jobs/{first}")
        await page.until(lambda name, data: f"row:{first}" in data["cells"])
        await own.until(lambda name, data: name == "job")
        for _ in range(3):
            await stage.dashboard.master.close()  # as the first call does that finds the master gone
            job = await a_job(stage)
            await page.until(lambda name, data: f"row:{job}" in data["cells"])  # noqa: B023
        await own.until(lambda name, data: name == "away")
        await own.until(lambda name, data: name == "job")
        page.close()
        own.close()
