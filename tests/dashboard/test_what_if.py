"""The page "what if": what can be asked for, its bounds, and that it gives the figures of `ebb replay`."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ebbtide_protos.v1 import client_pb2
from ebbtide_web.access.sessions import Session
from ebbtide_web.pages import replays as running
from ebbtide_web.pages.replays import ReplayFailedError, ReplayProgress, Replays
from ebbtide_web.pages.what_if import MOST_POLICIES, WantedWhatIf, mistake_of, offered_policies, read_what_ifs
from ebbtide_web.reach import AwayError

from tests.dashboard import stage as staging
from tests.dashboard.stage import REPLAY, a_stage
from tests.dashboard.test_access import a_job
from tests.master.world import FREED, RUNNING

SLOW = 'import json, sys, time; sys.stdin.read(); print(json.dumps({"words": "on it", "done": 0.5}), file=sys.stderr, flush=True); time.sleep(600)'  # noqa: E501
QUICK = "import sys; sys.stdin.read(); print(open(sys.argv[1]).read())"
FAILS = "import sys; print('ebb: numpy is not installed', file=sys.stderr); sys.exit(1)"
HUNGRY = "import sys; sys.stdin.read(); bytearray(3 << 30)"
FACTS = {
    "live": {}, "simulated": [{}], "since": 0, "until": 1, "gpus": [1, 1], "restart_cost_s": 0.0, "skipped": {},
    "notes": [],
}  # fmt: skip

COUNTS = f"""
import json, sys
facts = json.loads({json.dumps(FACTS)!r})
print(json.dumps(facts | {{"notes": [json.loads(line)["sequence"] for line in sys.stdin]}}))
"""
DEFAULT = WantedWhatIf()


class JournalMaster:
    """Sends so many events, every other of which may not be shown; counts how often it sent all."""

    def __init__(self, events: int = 4, error: Exception | None = None) -> None:
        self.events, self.error, self.sent = events, error, 0

    async def call(self, method, request, token):
        assert (method, token) == ("QueryEvents", "secret")
        return client_pb2.QueryEventsReply(last_sequence=self.events)

    async def stream(self, method, request, token):
        assert (method, token) == ("WatchEvents", "secret")
        for number in range(self.events):
            yield client_pb2.Event(
                sequence=number + 1, time=1.0 + number, kind="Quiesced", json="{}" if number % 2 else ""
            )
        if self.error is not None:
            raise self.error
        self.sent += 1


def a_session(user: str = "ann") -> Session:
    return Session(user, "user", "secret", f"token-of-{user}", time.monotonic() + 60)


async def followed(replays: Replays, session: Session, wanted: WantedWhatIf = DEFAULT):
    """All that is reported of one simulation."""
    return [found async for found in replays.replies(session, wanted.replay())]


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


# --- what is asked for ---


def test_an_address_says_what_is_wanted_and_what_makes_no_sense_is_as_if_it_were_not_there():
    query = {"policy": "fitgpp", "o.s": "8", "o.p": "", "since": "100", "until": "200", "nodes": "4x8", "o.seed": "1"}
    (wanted,) = read_what_ifs(query.items())
    assert wanted == WantedWhatIf("fitgpp", (("s", "8"),), 100, 200, "4x8")
    assert (wanted.mistake(), wanted.command()) == (
        "",
        "ebb replay --policy fitgpp --policy-option s=8 --since @100 --until @200 --nodes 4x8",
    )
    assert wanted.configuration() == ["[pools.default]", 'policy = "fitgpp"', 'options = {s = "8"}']
    strange = {"policy": "../../etc", "o.s": "\u202e", "since": "-1", "until": "1e999", "nodes": "; reboot"}
    assert read_what_ifs(strange.items()) == (WantedWhatIf(),)
    assert WantedWhatIf("fifo").command() == "ebb replay --policy fifo --until now"
    assert read_what_ifs(()) == (WantedWhatIf(),)


def test_an_address_asks_for_several_policies_each_with_the_options_behind_it_up_to_a_bound():
    query = [
        ("since", "100"), ("until", "200"), ("policy", "fitgpp"), ("o.s", "2"), ("policy", "fitgpp"), ("o.s", "8"),
        ("o.s", "9"), ("policy", "fifo"), ("o.s", "2"), ("policy", "fifo"), ("nodes", "2x4"),
    ]  # fmt: skip
    found = read_what_ifs(query)
    assert found == (
        WantedWhatIf("fitgpp", (("s", "2"),), 100, 200, "2x4"),
        WantedWhatIf("fitgpp", (("s", "8"),), 100, 200, "2x4"),
        WantedWhatIf("fifo", (), 100, 200, "2x4"),
    )
    assert [each.label for each in found] == ["fitgpp, s = 2", "fitgpp, s = 8", "fifo"]
    assert mistake_of(found) == ""
    many = read_what_ifs([("until", "200"), *(("policy", name) for name in sorted(offered_policies()))])
    assert len(many) == MOST_POLICIES < len(offered_policies())


def test_policies_are_compared_only_up_to_one_time_and_a_mistake_names_the_policy():
    assert "same time" in mistake_of((WantedWhatIf("fifo"), WantedWhatIf("tide")))
    wrong = WantedWhatIf("fitgpp", (("s", "much"),), until=200)
    assert re.match("fitgpp: .*s takes a number", mistake_of((WantedWhatIf("fifo", until=200), wrong)))
    assert mistake_of((WantedWhatIf("fifo"),)) == ""


def test_options_that_no_policy_takes_and_spans_that_end_before_they_begin_are_named():
    assert "s takes a number" in WantedWhatIf("fitgpp", (("s", "much"),)).mistake()
    assert "not before" in WantedWhatIf(since=200, until=100).mistake()


def test_every_policy_is_offered_with_the_defaults_that_it_has():
    policies = offered_policies()
    options = {option.name: option for option in policies["fitgpp"]}
    assert (options["s"].default, options["p"].default, options["fallback"].choices) == ("4", "none", ("multi", "wait"))
    for name, offered in policies.items():
        chosen = tuple((option.name, option.default) for option in offered)
        assert WantedWhatIf(name, chosen).mistake() == "", name


# --- how it runs ---


async def test_a_result_is_kept_for_a_while_and_says_how_many_events_were_not_to_be_seen(tmp_path):
    (tmp_path / "facts").write_text(json.dumps(FACTS))
    master = JournalMaster()
    replays = Replays(master, (sys.executable, "-c", QUICK, str(tmp_path / "facts")))
    *progress, found = await followed(replays, a_session())
    assert all(isinstance(each, ReplayProgress) for each in progress)
    assert (found.left_out, found.printed) == (2, FACTS)
    assert (await followed(replays, a_session()))[-1] is found
    assert master.sent == 1
    await followed(replays, a_session("bob"))
    assert master.sent == 2, "somebody else may see something else"
    await replays.close()


async def test_of_what_is_behind_the_span_only_the_first_event_is_sent():
    replays = Replays(JournalMaster(10), (sys.executable, "-c", COUNTS))
    for until_, sent in ((0, [2, 4, 6, 8, 10]), (5, [2, 4, 6])):
        assert (await followed(replays, a_session(), WantedWhatIf(until=until_)))[-1].printed["notes"] == sent
    await replays.close()


async def test_who_leaves_the_page_ends_the_simulation(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "LEFT_S", 0.0)
    monkeypatch.setattr(staging, "REPLAY", (sys.executable, "-c", SLOW))
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        stream = await ann.stream("/stream/whatif")
        await stream.until(lambda name, reported: (name, reported.get("words")) == ("progress", "on it"))
        assert [task.get_name() for task in asyncio.all_tasks()].count("what-if") == 1
        stream.close()
        await until(lambda: all(task.get_name() != "what-if" for task in asyncio.all_tasks()))


async def test_when_nobody_waits_any_more_the_process_ends(monkeypatch):
    monkeypatch.setattr(running, "LEFT_S", 0.0)
    replays = Replays(JournalMaster(), (sys.executable, "-c", SLOW))
    started, begin = [], replays._started

    async def noted(wanted):
        started.append(await begin(wanted))
        return started[-1]

    replays._started = noted
    replies = replays.replies(a_session(), WantedWhatIf().replay())
    async for found in replies:
        if found == ReplayProgress("on it", 0.75):
            break
    (process,) = started
    assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[16] == str(running.NICE)
    assert f"Max address space         {running.MOST_MEMORY_BYTES}" in Path(f"/proc/{process.pid}/limits").read_text()
    assert b"EBB_" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    await replies.aclose()
    await until(lambda: process.returncode is not None)
    await replays.close()


async def test_each_user_has_one_at_a_time_and_all_together_a_few(monkeypatch):
    monkeypatch.setattr(running, "LEFT_S", 0.0)
    replays = Replays(JournalMaster(), (sys.executable, "-c", SLOW))
    reported: dict[str, list] = {}

    async def follow(name: str, session: Session, wanted: WantedWhatIf) -> None:
        async for found in replays.replies(session, wanted.replay()):
            reported.setdefault(name, []).append(found)

    tasks = {
        name: asyncio.create_task(follow(name, a_session(user), WantedWhatIf(policy)))
        for name, user, policy in (
            ("first", "ann", "fifo"),
            ("hers", "ann", "tide"),
            ("bob's", "bob", "fifo"),
            ("carl's", "carl", "fifo"),
        )
    }
    runs = {name: lambda name=name: reported.get(name, [None])[-1] == ReplayProgress("on it", 0.75) for name in tasks}
    await until(lambda: runs["first"]() and runs["bob's"]())
    assert {reported[name][-1].words for name in ("hers", "carl's")} == {
        "waiting for its turn: another simulation runs"
    }
    tasks["first"].cancel()
    await until(runs["carl's"])
    assert not runs["hers"](), "one that has waited for longer goes first"
    tasks["bob's"].cancel()
    await until(runs["hers"])
    for task in tasks.values():
        task.cancel()
    await asyncio.wait(tasks.values())
    await replays.close()


@pytest.mark.parametrize(
    ("script", "words"), [(FAILS, "numpy is not installed"), (HUNGRY, "MemoryError"), (SLOW, "more than 1 s")]
)
async def test_what_fails_says_why_and_is_tried_again(monkeypatch, script, words):
    monkeypatch.setattr(running, "MOST_S", 1.0 if script is SLOW else 60.0)
    master = JournalMaster()
    replays = Replays(master, (sys.executable, "-c", script))
    for _ in range(2):
        with pytest.raises(ReplayFailedError, match=words):
            await followed(replays, a_session())
    await replays.close()


async def test_a_journal_that_breaks_off_is_no_result():
    replays = Replays(JournalMaster(error=AwayError("gone")), (sys.executable, "-c", SLOW))
    with pytest.raises(AwayError, match="gone"):
        await followed(replays, a_session())
    await replays.close()


async def test_policies_are_simulated_one_after_the_other_and_one_that_fails_leaves_the_others(tmp_path, monkeypatch):
    fails = f"import sys; sys.stdin.read(); sys.exit('no room' if 'tide' in sys.argv else print({json.dumps(FACTS)!r}))"
    monkeypatch.setattr(staging, "REPLAY", (sys.executable, "-c", fails))
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        stream = await ann.stream("/stream/whatif?policy=fifo&policy=tide&policy=fitgpp&until=2000000000")
        await stream.until(lambda _, reported: reported.get("number") == 2)
        stream.close()
    done = [reported["done"] for name, reported in stream.seen if name == "progress"]
    assert done == sorted(done)
    ends = {reported["number"]: (name, reported["label"]) for name, reported in stream.seen if "number" in reported}
    assert ends == {0: ("result", "fifo"), 1: ("failed", "tide"), 2: ("result", "fitgpp")}


# --- the figures ---


@pytest.mark.parametrize("who", [pytest.param("ada", marks=pytest.mark.slow), "bob"])
async def test_it_gives_the_figures_of_ebb_replay_for_the_same_span_policy_and_machines(tmp_path, monkeypatch, who):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        for number in range(4):
            job = await a_job(stage, "ann" if number % 2 else "bob", command=["secret-command"], gpus_min=None)
            await agent.receive("launch")
            await agent.report(job, 1, RUNNING)
            if number != 3:
                await agent.report(job, 1, FREED)
        await stage.master.becomes(job, "RUNNING", stage.tokens["ada"])
        until_ = int(time.time()) + 1
        await until(lambda: time.time() >= until_)
        query = f"since={until_ - 3600}&until={until_}&nodes=2x4&policy=fitgpp&o.s=2&policy=fifo"
        viewer = await stage.logged_in(who)
        stream = await viewer.stream(f"/stream/whatif?{query}")
        await stream.until(lambda _, reported: reported.get("number") == 1)
        stream.close()
        found = [reported for _, reported in stream.seen if "number" in reported]
        assert [each["label"] for each in found] == ["fitgpp, s = 2", "fifo"], found
        for each in found:
            await has_the_figures_of_ebb_replay(stage, each)
        assert found[0]["live"] == found[1]["live"]
        mistaken = await viewer.stream("/stream/whatif?policy=fitgpp&o.s=much")
        assert "takes a number" in (await mistaken.until(lambda name, _: name == "failed"))["words"]
        mistaken.close()


async def has_the_figures_of_ebb_replay(stage, found) -> None:
    """Whether a result of the page is what the command prints that the page names."""
    assert "secret" not in json.dumps(found)
    command = [*REPLAY, "--journal", str(stage.home / "journal.db"), "--json", *found["command"].split()[2:]]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    reported = json.loads((await child.communicate())[0])
    for report in (found["simulated"], reported["simulated"][0]):
        del report["sim_wall_s"]
    assert found["live"] == reported["live"]
    assert found["simulated"] == reported["simulated"][0]
    assert (found["live"]["jobs"], found["simulated"]["finished"], found["gpus"]) == (4, 4, [2, 8])
    assert {name: found[name] for name in ("since", "until", "notes", "skipped", "restart_cost_s", "gpus")} == {
        name: reported[name] for name in ("since", "until", "notes", "skipped", "restart_cost_s", "gpus")
    }
