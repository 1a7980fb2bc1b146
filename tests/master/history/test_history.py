"""The history: what it keeps of the journal, and that it comes to the sums of `ebb usage`, whatever happens to it."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.model.types import GpuId, JobId, NodeId
from ebbtide_core.views import timeline
from ebbtide_core.views.gpu_time import Dimension, Periods, Usage
from ebbtide_core.views.phases import Rest
from ebbtide_master.backup.compacting import compact
from ebbtide_master.history import reading, recorder
from ebbtide_master.history.file import GOES_ON, HistoryFile, Reached, SourceJournal
from ebbtide_master.history.reading import DrawnUpTo, read_timeline
from ebbtide_master.history.recorder import HistoryRecorder
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_protos.v1 import timeline_pb2
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.core.lab import DONE, Lab
from tests.core.views.test_ledger import usage_of
from tests.core.world import World
from tests.drawing import share_of

DEADLINE_S = 30.0
ALL = {"since": 0.0, "until": 31 * 86_400.0}
Sums = dict[tuple[str, str, str], float]


@contextmanager
def a_store(home: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(home / "journal.db")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def kept(store: SqliteStore) -> Iterator[HistoryRecorder]:
    history = HistoryRecorder(store)
    history.start()
    try:
        yield history
    finally:
        history.close()


def until(what: str, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(0.002)


def reached(store: SqliteStore) -> int:
    """The line up to which the file goes; 0 if it cannot be read."""
    try:
        with closing(sqlite3.connect(store.folder / "history.db")) as db:
            found = db.execute("SELECT value FROM meta WHERE key = 'line'").fetchone()
    except sqlite3.Error:
        return 0
    return int(found[0]) if found else 0


def append(store: SqliteStore, journal: list[tuple[float, e.Event]]) -> None:
    store.append(journal).result()


def catch_up(store: SqliteStore) -> None:
    with kept(store) as history:
        until(
            "the history has the whole journal",
            lambda: history.progress.done == 1.0 and reached(store) == store.last_sequence,
        )


def ask(store: SqliteStore, now: float, **fields: object) -> timeline_pb2.QueryTimelineReply:
    request = timeline_pb2.QueryTimelineRequest(**(ALL | fields))
    return read_timeline(store.folder / "history.db", request, DrawnUpTo(now, lags=False))


JOBS = timeline_pb2.TIMELINE_LANES_JOBS


def doing(span: timeline_pb2.TimelineSpan) -> str:
    return timeline_pb2.TimelineDoing.Name(span.doing).removeprefix("TIMELINE_DOING_").lower()


def sums(reply: timeline_pb2.QueryTimelineReply) -> Sums:
    """Seconds by user, job and what was done, as the page could add them up."""
    found = Counter[tuple[str, str, str]]()
    for lane in reply.lanes:
        assert not lane.shortened
        for span in lane.spans:
            found[span.user, span.job_id, doing(span)] += span.gpu_s
    return {key: round(seconds, 6) for key, seconds in found.items() if seconds > 1e-6}


NAMES = ("starting", "computing", "leaving", "waiting", "held", "suspended")


def of_ledger(usage: Usage, names: tuple[str, ...] = NAMES) -> Sums:
    return {
        (*key, name): round(getattr(account, name), 6)
        for key, account in usage.accounts.items()
        for name in names
        if getattr(account, name) > 1e-6
    }


def used(journal: list[tuple[float, e.Event]], now: float, since: float, until: float) -> Usage:
    return usage_of(journal, now, Periods((since, until)), (Dimension.USER, Dimension.JOB))


def a_busy_lab() -> Lab:
    lab = Lab(gpus=2)
    first = lab.running(2)
    lab.wait(99)
    urgent = lab.submit(1, te=True)
    lab.wait(4)
    lab.end(first)
    lab.start(urgent)
    lab.wait(49)
    lab.end(urgent, DONE)
    lab.settle()
    lab.wait(9)
    return lab


class KeptWorld(World):
    """A world whose journal is kept in a file at the end, with a master that ends and starts again in the middle."""

    home: Path

    def teardown(self) -> None:
        super().teardown()
        folder = self.home / str(len(list(self.home.iterdir())))
        folder.mkdir()
        with a_store(folder) as store:
            half = len(self.journal) // 2
            for part in (self.journal[:half], self.journal[half:]):
                append(store, part)
                catch_up(store)
            begin = self.journal[half][0] - 7.0 if self.journal else 0.0
            for since, end in ((0.0, self.now + 1.0), (begin, begin + 20.0)):
                usage, window = used(self.journal, self.now, since, end), {"since": since, "until": end}
                of_jobs = ask(store, self.now, lanes=JOBS, **window)
                if of_jobs.total <= 200:
                    assert sums(of_jobs) == pytest.approx(of_ledger(usage), abs=1e-3)
                of_gpus = {key: value for key, value in sums(ask(store, self.now, **window)).items() if key[1]}
                assert of_gpus == pytest.approx(of_ledger(usage, NAMES[:3]), abs=1e-3)


def test_the_history_comes_to_the_sums_of_usage_for_every_user_and_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LINES_AT_ONCE", 7)
    monkeypatch.setattr(recorder, "GATHER_S", 0.0)
    monkeypatch.setattr(KeptWorld, "home", tmp_path, raising=False)
    few = settings(
        max_examples=share_of(20), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(KeptWorld, settings=few)


def test_a_lane_of_a_gpu_says_who_had_it_and_why_that_ended(tmp_path: Path) -> None:
    lab = a_busy_lab()
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        reply = ask(store, lab.now)
        assert [(lane.node, lane.gpu_index) for lane in reply.lanes] == [("a", 0), ("a", 1)]
        told = [(span.job_id, doing(span), span.why) for span in reply.lanes[0].spans]
        assert told[:3] == [
            ("1", "starting", ""), ("1", "computing", "preempted for job 2"), ("1", "leaving", "suspended"),
        ]  # fmt: skip
        assert reply.lanes[0].spans[-1].open
        assert reply.lanes[0].spans[-1].end == lab.now == reply.edge
        (victim,) = [lane for lane in ask(store, lab.now, lanes=JOBS).lanes if lane.job_id == "1"]
        assert "suspended" in [doing(span) for span in victim.spans]


def test_a_history_that_was_deleted_is_made_again_as_it_was(tmp_path: Path) -> None:
    lab = a_busy_lab()
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        before = [ask(store, lab.now), ask(store, lab.now, lanes=JOBS)]
        assert before[0].lanes[0].spans
        for path in tmp_path.glob("history.db*"):
            path.unlink()
        catch_up(store)
        assert [ask(store, lab.now), ask(store, lab.now, lanes=JOBS)] == before


def test_a_file_that_is_deleted_meanwhile_is_made_again_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LOOK_S", 0.01)
    lab = a_busy_lab()
    with a_store(tmp_path) as store, kept(store):
        append(store, lab.journal)
        until("it is there", lambda: reached(store) == store.last_sequence)
        (tmp_path / "history.db").unlink()
        until("it is there again", lambda: reached(store) == store.last_sequence)


def test_what_compaction_removes_from_the_journal_stays_in_the_history_until_that_is_deleted(tmp_path: Path) -> None:
    lab = a_busy_lab()
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        before = sums(ask(store, lab.now, lanes=JOBS))
    assert compact(tmp_path, 0.0).forgotten == 1
    with a_store(tmp_path) as store:
        catch_up(store)
        reply = ask(store, lab.now, lanes=JOBS)
        assert sums(reply) == before
        assert reply.known_since == 0.0
        for path in tmp_path.glob("history.db*"):
            path.unlink()
        catch_up(store)
        reply = ask(store, lab.now, lanes=JOBS)
        assert {key[1] for key in sums(reply)} == {"1"}
        assert reply.known_since > lab.now, "the page says from when on it knows all"


def test_a_history_of_another_journal_is_begun_anew(tmp_path: Path) -> None:
    lab = a_busy_lab()
    one, other = tmp_path / "one", tmp_path / "other"
    for home, journal in ((one, lab.journal), (other, lab.journal[:4])):
        home.mkdir()
        with a_store(home) as store:
            append(store, journal)
            catch_up(store)
    (one / "history.db").replace(other / "history.db")
    with a_store(other) as store:
        catch_up(store)
        assert (
            sums(ask(store, lab.journal[3][0], lanes=JOBS)).keys()
            == of_ledger(used(lab.journal[:4], lab.journal[3][0], 0.0, 1e6)).keys()
        )


def test_a_journal_that_was_restored_is_another_one(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        append(store, a_busy_lab().journal)
        catch_up(store)
    path, goes_to = tmp_path / "history.db", len(a_busy_lab().journal)
    for restored, line in ((None, goes_to), (5.0, 0)):
        with closing(HistoryFile(path, SourceJournal(store.cluster_id, restored), goes_to)) as file:
            assert file.reached.line == line


def test_who_reads_while_a_file_is_begun_finds_either_nothing_or_all_that_is_noted(tmp_path, monkeypatch) -> None:
    path, seen = tmp_path / "history.db", []
    request = timeline_pb2.QueryTimelineRequest(**ALL)

    def looks(history: HistoryFile, how_far: Reached) -> None:
        seen.append(read_timeline(path, request, DrawnUpTo(9.0, lags=True)))
        note(history, how_far)
        seen.append(read_timeline(path, request, DrawnUpTo(9.0, lags=True)))

    note = HistoryFile._note
    monkeypatch.setattr(HistoryFile, "_note", looks)
    HistoryFile(path, SourceJournal("c", None), 0).close()
    assert [(reply.edge, len(reply.lanes)) for reply in seen] == [(0.0, 0)] * 2
    with closing(sqlite3.connect(path)) as db:
        assert {key for (key,) in db.execute("SELECT key FROM meta")} == {"origin", "line", "time", "known_since"}


def test_a_job_with_a_damaged_line_is_left_out_and_all_others_are_followed(tmp_path: Path) -> None:
    lab = a_busy_lab()
    with a_store(tmp_path) as store:
        append(store, lab.journal)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute("UPDATE events SET body = '{' WHERE kind = 'AttemptStarted' AND job = '1'")
    with a_store(tmp_path) as store:
        store.set_damage_aside()
        catch_up(store)
        assert {key[1] for key in sums(ask(store, lab.now, lanes=JOBS))} == {"2"}


@pytest.mark.parametrize(
    "text", [b"not a database, but long enough to be looked at" * 9, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_broken_is_said_and_left_alone(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "history.db").write_bytes(text)
    with a_store(tmp_path) as store, kept(store) as history:
        append(store, a_busy_lab().journal)
        until("it is said", lambda: bool(history.progress.problem))
        assert "remove it, and it is made again from the journal" in history.progress.problem
    assert (tmp_path / "history.db").read_bytes() == text


def test_on_a_full_disk_nothing_is_written_and_it_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [0]
    monkeypatch.setattr(recorder, "free_bytes", lambda folder: room[0])
    monkeypatch.setattr(recorder, "RETRY_S", 0.01)
    with a_store(tmp_path) as store, kept(store) as history:
        append(store, a_busy_lab().journal)
        until("it is said", lambda: "the disk is full" in history.progress.problem)
        assert not (tmp_path / "history.db").exists()
        room[0] = 2**40
        until("it goes on", lambda: not history.progress.problem and reached(store) == store.last_sequence)


def test_a_fault_of_the_history_is_said_and_ends_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "Timeline", lambda: 1 / 0)
    with a_store(tmp_path) as store, kept(store) as history:
        until("it is said", lambda: "fault" in history.progress.problem)
        append(store, a_busy_lab().journal)
        assert store.last_sequence > 0


def test_what_is_narrower_than_a_bucket_is_merged_and_comes_to_the_same_seconds(tmp_path: Path) -> None:
    lab = Lab(gpus=1)
    for _ in range(30):
        lab.end(lab.running(1), DONE)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        window = {"since": 900.0, "until": lab.now + 100.0}
        (one,) = ask(store, lab.now, **window).lanes
        (merged,) = ask(store, lab.now, buckets=4, **window).lanes
        assert (len(one.spans), len(merged.spans) < 6) == (90, True)
        assert sum(span.count for span in merged.spans) == 90
        assert sum(span.gpu_s for span in merged.spans) == pytest.approx(sum(span.gpu_s for span in one.spans))
        assert {(span.job_id, doing(span)) for span in merged.spans} == {("", "several")}


def test_a_reply_has_no_more_spans_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide_master.history.reading.MOST_SPANS", 10)
    lab = Lab(gpus=1)
    for _ in range(30):
        lab.end(lab.running(1), DONE)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        window = {"since": 900.0, "until": lab.now + 100.0}
        (merged,) = ask(store, lab.now, buckets=1000, **window).lanes
        assert len(merged.spans) <= 10
        assert not merged.shortened
        assert sum(span.count for span in merged.spans) == 90
        (one,) = ask(store, lab.now, **window).lanes
        assert (len(one.spans), one.shortened) == (10, True)


def test_lanes_are_of_one_user_node_or_pool_a_page_at_a_time(tmp_path: Path) -> None:
    lab = Lab(nodes="ab", gpus=2)
    lab.running(1)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        assert [lane.gpu_uuid for lane in ask(store, lab.now).lanes] == ["a0", "a1", "b0", "b1"]
        assert [lane.gpu_uuid for lane in ask(store, lab.now, node="b").lanes] == ["b0", "b1"]
        assert [lane.gpu_uuid for lane in ask(store, lab.now, of_user="ann").lanes] == ["a0"]
        assert ask(store, lab.now, of_user="bob").total == ask(store, lab.now, pool="none").total == 0
        page = ask(store, lab.now, first=1, limit=2)
        assert ([lane.gpu_uuid for lane in page.lanes], page.total) == (["a1", "b0"], 4)
        assert [lane.job_id for lane in ask(store, lab.now, lanes=JOBS, node="a").lanes] == ["1"]
        assert ask(store, lab.now, lanes=JOBS, node="b").total == 0


def test_of_a_job_that_its_user_removed_nothing_is_shown_but_whose_it_was_and_when(tmp_path: Path) -> None:
    lab = Lab(gpus=2)
    jobs = [lab.running(1, name=name) for name in ("secret", "kept")]
    for job in jobs:
        lab.end(job, DONE)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        before = sums(ask(store, lab.now))
        assert names(store, lab.now) == {"1": {"secret"}, "2": {"kept"}}
        shown = len(lab.journal)
        lab.tell(e.JobRemoved(jobs[0].id, "ann"))
        append(store, lab.journal[shown:])
        catch_up(store)
        assert names(store, lab.now) == {"1": {""}, "2": {"kept"}}
        assert sums(ask(store, lab.now)) == before
        with closing(sqlite3.connect(tmp_path / "history.db")) as db, db:
            db.execute("UPDATE jobs SET name = 'secret' WHERE job = '1'")  # as an older version left it
            db.execute("DELETE FROM meta WHERE key = 'names-forgotten'")
        catch_up(store)
        until("the name is gone from an old file", lambda: names(store, lab.now)["1"] == {""})
        for path in tmp_path.glob("history.db*"):
            path.unlink()
        catch_up(store)
        assert names(store, lab.now) == {"1": {""}, "2": {"kept"}}


def names(store: SqliteStore, now: float) -> dict[str, set[str]]:
    """By job, what lanes and spans call it."""
    found: dict[str, set[str]] = {}
    for lane in ask(store, now, lanes=JOBS).lanes:
        found.setdefault(lane.job_id, set()).add(lane.name)
    for lane in [*ask(store, now, lanes=JOBS).lanes, *ask(store, now).lanes]:
        for span in lane.spans:
            found.setdefault(span.job_id, set()).add(span.name)
    return found


POOLS, NODES = timeline_pb2.TIMELINE_LANES_POOLS, timeline_pb2.TIMELINE_LANES_NODES


@pytest.mark.parametrize("parts", [1, 7, 240])
def test_strips_of_pools_and_nodes_come_to_what_was_held_on_their_gpus(tmp_path: Path, parts: int) -> None:
    lab = Lab(nodes="ab", gpus=2)
    first = lab.running(2)
    lab.wait(50)
    lab.tell(e.JobSubmitted(JobId("2"), first.spec, "bob"))
    other = lab.cluster.state.jobs[JobId("2")]
    lab.start(other)
    lab.wait(49)
    lab.end(first, DONE)
    lab.wait(9)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        window = {"since": lab.journal[0][0] - 20.0, "until": lab.now + 30.0}
        length = window["until"] - window["since"]
        for user in ("", "ann", "bob"):
            lanes = ask(store, lab.now, of_user=user, **window).lanes
            held = Counter[str]()
            for lane in lanes:
                held[lane.node] += sum(span.gpu_s for span in lane.spans if span.job_id)
            (pool,) = ask(store, lab.now, lanes=POOLS, buckets=parts, of_user=user, **window).lanes
            nodes = ask(store, lab.now, lanes=NODES, buckets=parts, of_user=user, **window).lanes
            found = {lane.node: sum(lane.heat.held) * length / parts for lane in nodes}
            assert found == pytest.approx({node: held[node] for node in found}, abs=0.1)
            assert sum(pool.heat.held) * length / parts == pytest.approx(sum(held.values()), abs=0.1)
            assert (pool.gpus, {lane.gpus for lane in nodes}) == (4, {2})
            assert max(pool.heat.present) <= 4.0
            drawn = (lab.now - window["since"]) / length * parts
            assert drawn <= len(pool.heat.held) == len(nodes[0].heat.present) < drawn + 1, "up to now, and no further"
        assert [lane.node for lane in ask(store, lab.now, lanes=NODES, buckets=1, of_user="bob").lanes] == [
            piece.node for piece in other.attempts[0].allocation
        ]


def test_strips_say_what_was_out_of_service_and_when(tmp_path: Path) -> None:
    lab = Lab(nodes="ab", gpus=2)
    lab.wait(100)
    lab.tell(e.NodeLost(NodeId("b"), 60.0))
    lab.wait(100)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        catch_up(store)
        asked = {"since": lab.now - 202.0, "until": lab.now, "buckets": 2}
        (pool,) = ask(store, lab.now, lanes=POOLS, **asked).lanes
        assert (list(pool.heat.present), list(pool.heat.unavailable)) == ([4.0, 4.0], [0.0, 2.0])
        one, other = ask(store, lab.now, lanes=NODES, **asked).lanes
        assert (one.node, list(one.heat.unavailable)) == ("a", [0.0, 0.0])
        assert (other.node, list(other.heat.unavailable)) == ("b", [0.0, 2.0])
        page = ask(store, lab.now, lanes=NODES, first=1, limit=1, **asked)
        assert ([lane.node for lane in page.lanes], page.total) == (["b"], 2)


def test_a_file_that_has_how_gpus_rested_by_older_rules_gets_it_by_the_present_ones(tmp_path, monkeypatch) -> None:
    lab = Lab(gpus=1)
    lab.end(lab.running(1), DONE)
    node, job, gpus = NodeId("a"), JobId("77"), (GpuId("a0"),)
    lab.tell(e.StrayFound(node=node, job=job, attempt=1, kind=StrayKind.UNKNOWN, gpus=gpus))
    found = lab.now
    lab.wait(9)
    with a_store(tmp_path) as store:
        append(store, lab.journal)
        with monkeypatch.context() as older:
            older.setattr(timeline, "rest_of", lambda node, gpu: Rest.IDLE)
            catch_up(store)
        with closing(sqlite3.connect(tmp_path / "history.db")) as db, db:
            db.execute("DELETE FROM meta WHERE key = 'rest-rules'")
    assert compact(tmp_path, 0.0).forgotten == 1
    with a_store(tmp_path) as store:
        shown = len(lab.journal)
        lab.tell(e.NodeDrained(node=node))
        append(store, lab.journal[shown:])
        catch_up(store)
        with closing(sqlite3.connect(tmp_path / "history.db")) as db:
            rests = db.execute("SELECT rest, start, end = ? FROM gpus ORDER BY start", (GOES_ON,)).fetchall()
            jobs = db.execute("SELECT job FROM jobs").fetchall()
        assert rests == [("idle", lab.journal[0][0], 0), ("unavailable", found, 1)]
        assert jobs == [("1",)], "what was forgotten meanwhile stays"


def test_a_window_is_found_without_looking_at_the_whole_history(tmp_path: Path) -> None:
    with a_store(tmp_path) as store:
        append(store, a_busy_lab().journal)
        catch_up(store)
        asked = {
            "since": 0.0, "until": 1.0, "edge": 1.0, "node": "", "user": "", "pool": "", "gpu": "", "job": "",
            "bucket": 1.0, "most": 1,
        }  # fmt: skip
        with closing(sqlite3.connect(tmp_path / "history.db")) as db:
            for lane in (reading._LANE_OF_GPU, reading._LANE_OF_JOB):
                plan = db.execute(
                    f"EXPLAIN QUERY PLAN {reading._WIDE.format(lane=lane, inside=reading._INSIDE)}", asked
                )
                steps = [row[3] for row in plan]
                assert not [step for step in steps if step.startswith("SCAN") and "(" not in step], steps
