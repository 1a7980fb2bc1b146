"""A journal as a workload: what is read off it, and what is refused."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.codec import encode
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    Checkpointed,
    CheckpointFacts,
    ExitFacts,
    GpuFacts,
    GpuId,
    JobId,
    Loan,
    NodeId,
    SuspendMode,
    Task,
)
from ebbtide_sim.engine import registration as node_registration
from ebbtide_sim.replay import JournalSpan, RecordedEvent, read_export, read_journal, reconstruct, write_export
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.workload import WorkloadError

from tests.core.lab import DONE, GIB, Lab, registration, stepped_aside
from tests.core.views.test_ledger import ann


def recorded(lab: Lab) -> list[RecordedEvent]:
    return [RecordedEvent(n, t, type(event).__name__, encode(event)) for n, (t, event) in enumerate(lab.journal, 1)]


@pytest.fixture
def lab() -> Lab:
    """A best-effort job that was preempted by a trial after 100 s, and went on for another 50."""
    lab = Lab("fitgpp", gpus=2)
    long = lab.running(2, grace_s=30.0)
    lab.wait(99.0)
    trial = lab.submit(1, te=True)
    lab.wait(4.0)
    lab.end(long, stepped_aside())
    lab.start(trial)
    lab.wait(19.0)
    lab.end(trial, DONE)
    lab.start(long)
    lab.wait(49.0)
    lab.end(long, DONE)
    lab.submit(1, hold=True)
    return lab


def test_jobs_come_when_they_came_and_compute_as_long_as_they_did(lab: Lab) -> None:
    past = reconstruct(recorded(lab))
    long, trial = past.workload.jobs
    assert (long.submit_s, trial.submit_s) == (0.0, pytest.approx(102))
    assert (long.runtime_s, trial.runtime_s) == (pytest.approx(151, abs=3), pytest.approx(21, abs=2))
    assert (long.grace_s, long.save_s) == (30, pytest.approx(6, abs=1))
    assert [(node.name, node.gpus) for node in past.nodes] == [("a", 2)]
    assert past.workload.skipped == {"never ran": 1}


def test_what_happened_is_measured_as_a_simulation_would_be(lab: Lab) -> None:
    live = reconstruct(recorded(lab)).live
    assert (live.jobs, live.finished, live.preemptions) == (2, 2, 1)
    assert live.slowdown["be"]["p50"] > 1.1
    assert live.reschedule_interval_s["p50"] == pytest.approx(30, abs=4)


def test_a_preempted_job_waits_from_the_first_time_that_it_was_asked_to_leave() -> None:
    lab = Lab("fitgpp", gpus=1)
    job = lab.running(1, grace_s=600.0)
    lab.wait(99.0)
    trial = lab.submit(1, te=True)
    lab.wait(50.0)
    lab.tell(e.LoanChanged(NodeId("a"), 300.0))
    lab.tell(e.LoanChanged(NodeId("a"), None))
    lab.end(job)
    lab.start(trial)
    lab.end(trial, DONE)
    lab.start(job)
    lab.end(job, DONE)
    first, stop = job.suspensions[0].requested, job.attempts[0].stop
    assert stop is not None
    assert stop.requested > first + 50
    live = reconstruct(recorded(lab)).live
    assert (live.preemptions, live.reschedule_interval_s["p50"]) == (1, job.attempts[1].placed - first)


def test_a_job_that_goes_on_at_the_end_counts_until_then_as_it_does_in_a_simulation() -> None:
    lab = Lab("fifo", gpus=2)
    short = lab.running(1)
    lab.running(1)
    lab.wait(10)
    lab.end(short, DONE)
    lab.wait(1000)
    lab.submit(1, hold=True)
    past = reconstruct(recorded(lab))
    simulated = simulate(Scenario(workload=past.workload, nodes=past.nodes, policy="fifo"))
    assert (past.live.jobs, past.live.finished) == (2, 1)
    assert past.live.makespan_s == pytest.approx(simulated.makespan_s, rel=0.02)
    assert past.live.busy == pytest.approx(simulated.busy, rel=0.02)
    assert past.live.utilisation == pytest.approx(simulated.utilisation, rel=0.02)


def test_shares_of_a_gpu_are_measured_as_a_simulation_measures_them() -> None:
    lab = Lab("fifo", gpus=1)
    jobs = [lab.submit("1/4") for _ in range(4)]
    for job in jobs:
        lab.start(job)
    lab.wait(1000)
    for job in jobs:
        lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    simulated = simulate(Scenario(workload=past.workload, nodes=past.nodes, policy="fifo"))
    assert past.live.stretch["mean"] == pytest.approx(simulated.stretch["mean"], rel=0.02)
    assert past.live.utilisation == pytest.approx(simulated.utilisation, rel=0.02)


def test_a_span_takes_what_was_there_then_and_of_what_was_there_before_only_the_rest(lab: Lab) -> None:
    lines = recorded(lab)
    whole = reconstruct(lines)
    middle = whole.began + 125  # the trial has begun, and the preempted job waits
    late = reconstruct(lines, JournalSpan(since=middle))
    assert [job.submit_s for job in late.workload.jobs] == [0.0, 0.0]
    assert sum(job.runtime_s for job in late.workload.jobs) == pytest.approx(49, abs=12)
    assert (late.live.preemptions, late.began, late.ended) == (0, middle, whole.ended)
    assert "2 jobs were submitted before" in late.workload.notes[0]
    early = reconstruct(lines, JournalSpan(until=whole.began + 50))
    assert [job.runtime_s for job in early.workload.jobs] == [pytest.approx(49, abs=3)]
    assert (early.live.jobs, early.live.finished, early.ended) == (1, 0, whole.began + 50)
    with pytest.raises(WorkloadError, match="the journal has no jobs then"):
        reconstruct(lines, JournalSpan(until=lines[0].time))


def test_a_job_computes_in_a_span_in_which_nothing_happens() -> None:
    lab = Lab("fitgpp", gpus=1)
    job = lab.running(1)
    lab.wait(99.0)
    trial = lab.submit(1, te=True)
    lab.end(job)
    lab.start(trial)
    lab.end(trial, DONE)
    lab.start(job)
    quiet = JournalSpan(lab.now + 1000, lab.now + 1500)
    past = reconstruct(recorded(lab), quiet)
    assert [one.runtime_s for one in past.workload.jobs] == [500]
    assert (past.began, past.ended, past.workload.skipped) == (quiet.since, quiet.until, {})
    assert (past.live.jobs, past.live.preemptions, past.live.busy) == (1, 0, 1)


def test_a_job_computes_to_the_end_of_a_span_although_the_last_event_is_before_that() -> None:
    lab = Lab("fifo", gpus=1)
    lab.running(1)
    (job,) = reconstruct(recorded(lab), JournalSpan(until=lab.now + 1000)).workload.jobs
    assert job.runtime_s == 1000


def test_a_span_without_an_end_never_ends_before_it_begins() -> None:
    lab = Lab("fifo", gpus=1)
    lab.running(1)
    past = reconstruct(recorded(lab), JournalSpan(since=lab.now + 1000))
    assert (past.began, past.ended, past.workload.skipped) == (lab.now + 1000, lab.now + 1000, {})


def test_other_machines_are_of_the_largest_kind_that_there_was(lab: Lab) -> None:
    lab.tell(registration("b", 4))
    past = reconstruct(recorded(lab))
    machines = past.machines("3x8")
    assert [(node.name, node.gpus) for node in machines] == [("node0", 8), ("node1", 8), ("node2", 8)]
    assert {node.gpu_mem_bytes for node in machines} == {past.nodes[1].gpu_mem_bytes}
    with pytest.raises(WorkloadError, match="is not NODESxGPUS"):
        past.machines("many")


def unlike() -> Lab:
    """A node with two small GPUs and two large ones of another model."""
    small, large = GpuFacts(GpuId("u0"), 0, "T4", 16 * GIB), GpuFacts(GpuId("u2"), 2, "A100", 80 * GIB)
    gpus = small, replace(small, gpu=GpuId("u1"), index=1), large, replace(large, gpu=GpuId("u3"), index=3)
    lab = Lab("fifo", "")
    lab.tell(replace(registration("u"), gpus=gpus))
    return lab


@pytest.mark.parametrize(
    ("gpus", "needs"),
    [
        ("1/2", {"gpu_mem_bytes": 30 * GIB}),
        (2, {"gpu_mem_bytes": 60 * GIB}),
        (4, {"needs": Needs(mixed_gpus=True)}),
        (2, {"needs": Needs(gpu_total_mem_bytes=60 * GIB)}),
    ],
)
def test_what_ran_on_a_node_whose_gpus_are_not_alike_runs_there_again(gpus: int | str, needs: dict[str, Any]) -> None:
    lab = unlike()
    job = lab.running(gpus, **needs)
    lab.wait(1000)
    lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    simulated = simulate(Scenario(workload=past.workload, nodes=past.nodes, policy="fifo"))
    assert (simulated.dropped, simulated.finished) == (0, 1)
    assert simulated.flow_time_s["max"] == pytest.approx(1000, abs=5)


def test_gpus_that_are_not_alike_stay_so_and_other_machines_have_the_largest() -> None:
    lab = unlike()
    lab.end(lab.running(1), DONE)
    past = reconstruct(recorded(lab))
    [node] = past.nodes
    assert [facts.mem_bytes // GIB for facts in node_registration(node).gpus] == [16, 16, 80, 80]
    assert [facts.model for facts in node_registration(node).gpus] == ["T4", "T4", "A100", "A100"]
    [machine] = past.machines("1x3")
    assert [(facts.model, facts.mem_bytes // GIB) for facts in node_registration(machine).gpus] == [("A100", 80)] * 3


def borrowed(own: str) -> Lab:
    """Jobs that run for 1000 s on a node on loan with two GPUs, and on ``own`` nodes with one; then the loan ends."""
    lab = Lab("fifo", own, gpus=1)
    lab.tell(registration("b", 2, loan=Loan(lab.now + 1500, "hpc")))
    jobs = [lab.running(2), *(lab.running(1) for _ in own)]
    lab.wait(1000)
    for job in jobs:
        lab.end(job, DONE)
    lab.wait(600)
    lab.tell(e.NodeDisconnected(NodeId("b")))
    lab.tell(e.NodeLost(NodeId("b"), 30.0))
    return lab


def test_nothing_is_simulated_on_nodes_that_have_ended_and_what_ran_there_is_measured_by_when_they_were_there() -> None:
    lab = borrowed("a")
    past = reconstruct(recorded(lab))
    assert [node.name for node in past.nodes] == ["a"]
    assert past.workload.notes == ("1 nodes had ended, or were removed: nothing is simulated on them",)
    assert past.live.busy == pytest.approx(1.0, abs=0.02)
    before = reconstruct(recorded(lab), JournalSpan(until=lab.journal[0][0] + 50))
    assert [node.name for node in before.nodes] == ["a", "b"]
    assert before.workload.notes == ("2 jobs were not completed: they count with what they computed",)


@pytest.mark.parametrize("removed", [False, True])
def test_where_all_nodes_have_ended_others_have_to_be_named(removed: bool) -> None:
    lab = borrowed("")
    if removed:
        lab.tell(e.NodeRemoved(NodeId("b"), "ann"))
    past = reconstruct(recorded(lab))
    with pytest.raises(WorkloadError, match="all nodes of the journal had ended by then: name others with --nodes"):
        past.machines(None)
    assert [node.gpus for node in past.machines("3x4")] == [4, 4, 4]
    assert past.live.busy == pytest.approx(1.0, abs=0.02)


def test_waiting_and_flow_times_are_told_by_class(lab: Lab) -> None:
    of = reconstruct(recorded(lab)).live.by_class
    assert (of["te"]["jobs"], of["be"]["jobs"]) == (1, 1)
    assert of["be"]["waiting_s"]["mean"] == pytest.approx(30, abs=6)
    assert of["be"]["flow_time_s"]["max"] > of["te"]["flow_time_s"]["max"]


def test_a_job_that_was_put_together_is_so_again() -> None:
    lab = Lab("fifo", gpus=2)
    job = lab.running(2, max_nodes=3, spread=True)
    lab.end(job, DONE)
    [again] = reconstruct(recorded(lab)).workload.jobs
    assert (again.nodes, again.max_nodes) == (1, 3)


def test_a_priority_that_was_changed_counts_as_it_was_in_the_end_and_a_note_says_so() -> None:
    lab = Lab("priority", gpus=1)
    job = lab.running(1, priority=42)
    lab.tell(e.JobChanged(job.id, 5, 2.0, 42, 1.0, "ann"))
    lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    assert [(job.priority, job.weight) for job in past.workload.jobs] == [(5, 2.0)]
    assert past.workload.notes == (
        "1 jobs were given another priority or weight: they have the last one from the beginning",
    )


def test_a_job_comes_when_it_was_to_begin() -> None:
    lab = Lab("fifo", gpus=1)
    lab.end(lab.running(1), DONE)
    late = lab.submit(1, begin_at=lab.now + 5000)
    lab.wait(4999)
    lab.start(late)
    lab.wait(100)
    lab.end(late, DONE)
    past = reconstruct(recorded(lab))
    assert past.workload.jobs[1].submit_s == late.spec.begin_at - past.began
    assert past.live.waiting_s["max"] < 5
    assert past.workload.notes == ()


def test_jobs_that_had_to_wait_for_something_but_room_are_counted_in_a_note() -> None:
    lab = Lab("fifo", gpus=4)
    first = lab.running(1)
    after = lab.submit(1, after=(Dependency(first.id, AfterKind.OK),))
    held = lab.submit(1, hold=True)
    tasks = [JobId("4.0"), JobId("4.1")]
    for number, task in enumerate(tasks):
        spec = JobSpec(command=("x",), workdir="/")
        lab.tell(e.JobSubmitted(task, spec, "ann", task=Task(JobId("4"), number, 2, max_concurrent=1)))
    lab.wait(1000)
    lab.end(first, DONE)
    lab.tell(e.ReleaseRequested(held.id))
    for job in (after, held, *(lab.cluster.state.jobs[task] for task in tasks)):
        lab.start(job)
        lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    assert past.workload.notes == (
        "3 jobs had to wait for another job, a hold, or the limit of an array: simulated, they do not",
    )


def test_pools_are_taken_for_one_and_a_note_says_so() -> None:
    lab = Lab("fifo", gpus=1)
    lab.tell(registration("b", 1, pool="big"))
    lab.end(lab.running(1), DONE)
    past = reconstruct(recorded(lab))
    assert (len(past.nodes), past.workload.notes) == (2, ("the pools big, default are taken for one",))


def test_a_job_needs_the_gpu_memory_that_it_turned_out_to_need() -> None:
    lab = Lab("fifo", gpus=1)
    job = lab.running("1/4", gpu_mem_bytes=2 << 30)
    lab.tell(e.MemoryOverran(job.id, 1, job.attempts[0].allocation.gpu_ids[0], 10 << 30, 2 << 30))
    lab.end(job)
    lab.start(job)
    lab.end(job, DONE)
    [again] = reconstruct(recorded(lab)).workload.jobs
    assert again.gpu_mem_bytes == 11 << 30


def test_an_export_reads_as_the_journal_did(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    with path.open("w") as out:
        write_export(recorded(lab), out)
    assert list(read_export(path)) == recorded(lab)


def test_a_journal_is_read_and_not_written(lab: Lab, tmp_path: Path) -> None:
    path = journal(tmp_path, recorded(lab))
    before = path.read_bytes()
    assert list(read_journal(path)) == recorded(lab)
    assert path.read_bytes() == before


def journal(folder: Path, lines: list[RecordedEvent], version: int = 1) -> Path:
    path = folder / "journal.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY, time REAL, kind TEXT, body TEXT)")
        rows = [(line.sequence, line.time, line.kind, json.dumps(line.body)) for line in lines]
        db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    return path


class TestRefusals:
    def test_no_journal(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="there is no journal"):
            list(read_journal(tmp_path / "journal.db"))

    def test_a_newer_journal(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="newer version of Ebbtide"):
            list(read_journal(journal(tmp_path, [], version=99)))

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "journal.db"
        path.write_bytes(b"not a database at all" * 100)
        with pytest.raises(WorkloadError, match="is no journal"):
            list(read_journal(path))

    def test_an_empty_journal(self) -> None:
        with pytest.raises(WorkloadError, match="the journal has no jobs"):
            reconstruct([])

    def test_an_event_that_cannot_be_read(self) -> None:
        with pytest.raises(WorkloadError, match="event 7 of the journal, a JobFlew, cannot be read"):
            reconstruct([RecordedEvent(7, 0.0, "JobFlew", {})])

    @pytest.mark.parametrize(
        "line", ["{", "[]", '{"sequence": 1}', '{"sequence": 1, "time": "x", "kind": "", "body": 1}']
    )
    def test_a_line_of_an_export(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "export.jsonl"
        path.write_text(line + "\n")
        with pytest.raises(WorkloadError, match=f"{path}:1: is not"):
            list(read_export(path))


@pytest.mark.parametrize("ends", ["is cancelled", "reaches its time limit"])
def test_a_job_that_is_not_to_go_on_counts_with_what_it_computed(ends: str) -> None:
    lab = Lab("fifo", gpus=1)
    job = lab.running(1, time_limit_s=1000.0 if ends != "is cancelled" else None)
    lab.wait(1000.0)
    if ends == "is cancelled":
        lab.tell(e.CancelRequested(job.id))
    lab.end(job, stepped_aside(exit_code=0, signal=9, acknowledged=False, checkpointed=Checkpointed.NO))
    past = reconstruct(recorded(lab))
    assert past.workload.jobs[0].runtime_s == pytest.approx(1001, abs=3)
    assert past.live.wasted_gpu_s < 10


@pytest.mark.parametrize("gone", [e.JobRetired, lambda id: e.JobRemoved(id, "ann")])
def test_jobs_that_were_forgotten_or_removed_are_in_the_past_too(lab: Lab, gone: Callable[[JobId], e.Event]) -> None:
    lab.tell(gone(lab.journal[1][1].job))
    assert len(reconstruct(recorded(lab)).workload.jobs) == 2


def test_a_swapped_job_computed_before_it_left_and_after_it_came_back() -> None:
    lab = Lab("fitgpp", gpus=1)
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.wait(1000.0)
    urgent = lab.submit(1, te=True)
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 30 * GIB, 10.0))
    lab.start(urgent)
    lab.wait(200.0)
    lab.end(urgent, DONE)
    away = reconstruct(recorded(lab))
    assert [one.runtime_s for one in away.workload.jobs] == [pytest.approx(1001, abs=3), pytest.approx(201, abs=3)]
    lab.tell(e.AttemptStarted(job.id, 1, 1001, None, 1))
    lab.wait(100.0)
    lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    assert past.workload.jobs[0].runtime_s == pytest.approx(1101, abs=5)
    assert past.live.busy == pytest.approx(1.0, abs=0.01)
    assert past.live.slowdown["be"]["p50"] == pytest.approx(1.2, abs=0.03)


def test_what_was_lost_is_wasted_and_not_computed_again_by_a_simulation() -> None:
    lab = Lab("fitgpp", gpus=1)
    job = lab.running(1)
    lab.wait(1000.0)
    urgent = lab.submit(1, te=True)
    lab.end(job, stepped_aside(exit_code=0, signal=9, acknowledged=False, checkpointed=Checkpointed.NO))
    lab.start(urgent)
    lab.end(urgent, DONE)
    lab.start(job)
    lab.wait(1500.0)
    lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    assert past.workload.jobs[0].runtime_s == pytest.approx(1501, abs=5)
    assert past.live.wasted_gpu_s > 1000


CUT_OFF = stepped_aside(exit_code=0, signal=9, acknowledged=False, asked=True, checkpointed=Checkpointed.NO)
LOST = ExitFacts(lost=True, lost_because="node a was confirmed dead")


@pytest.mark.parametrize("exit", [CUT_OFF, LOST, ExitFacts(exit_code=1)])
@pytest.mark.parametrize("saves", [True, False])
def test_only_what_no_checkpoint_had_is_wasted_however_the_attempt_ended_and_the_usage_says_the_same(
    exit: ExitFacts, saves: bool
) -> None:
    lab = Lab("fifo", gpus=1)
    job = lab.running(1, retries=1)
    lab.wait(5000.0)
    if saves:
        lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(500, 1, "/c", True)))
    lab.wait(700.0)
    if exit.stop_requested:
        lab.tell(e.SuspendRequested(job.id))
    lab.end(job, exit)
    lab.tell(e.ResumeRequested(job.id))
    lab.wait(1.0)
    lab.start(job)
    lab.wait(4900.0)
    lab.end(job, DONE)
    past = reconstruct(recorded(lab))
    lost_s = 700 if saves else 5700
    assert past.workload.jobs[0].runtime_s == pytest.approx(5700 + 4900 - lost_s, abs=10)
    assert past.live.wasted_gpu_s == pytest.approx(lost_s, abs=10)
    assert ann(lab).lost == pytest.approx(lost_s, abs=5)


def test_what_ran_while_the_clock_was_ahead_is_computed_again_by_a_simulation() -> None:
    lab = Lab("fifo", gpus=1)
    lab.now += 100_000
    first = lab.running(1)
    lab.wait(5000.0)
    lab.end(first, DONE)
    lab.now -= 100_000
    lab.tell(e.ClockSetBack(100_000.0))
    second = lab.running(1)
    lab.wait(300.0)
    lab.end(second, DONE)
    again = {job.id: job.runtime_s for job in reconstruct(recorded(lab)).workload.jobs}
    assert again == {first.id: pytest.approx(5000, abs=5), second.id: pytest.approx(300, abs=5)}


@pytest.mark.parametrize("is_alone", [False, True])
def test_what_runs_as_a_clock_that_was_ahead_is_set_back_is_computed_whole_by_a_simulation(is_alone: bool) -> None:
    lab = Lab("fifo", gpus=2)
    if not is_alone:
        lab.end(lab.running(1), DONE)
    lab.now += 100_000
    job = lab.running(1)
    lab.wait(5000.0)
    lab.now -= 100_000
    lab.tell(e.ClockSetBack(100_000.0))
    lab.wait(1000.0)
    lab.end(job, DONE)
    again = {one.id: one.runtime_s for one in reconstruct(recorded(lab)).workload.jobs}
    assert again[job.id] == pytest.approx(6000, abs=10)


def test_what_a_checkpoint_had_before_the_clock_was_set_back_is_kept_if_the_attempt_is_lost() -> None:
    lab = Lab("fifo", gpus=1)
    lab.now += 100_000
    job = lab.running(1)
    lab.wait(4000.0)
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(10, 1, "/c", True)))
    lab.wait(1000.0)
    lab.now -= 100_000
    lab.tell(e.ClockSetBack(100_000.0))
    lab.wait(500.0)
    lab.end(job, ExitFacts(lost=True, lost_because="node a was confirmed dead"))
    assert reconstruct(recorded(lab)).workload.jobs[0].runtime_s == pytest.approx(4000, abs=10)


def test_a_job_that_failed_for_good_counts_with_what_it_computed() -> None:
    lab = Lab("fifo", gpus=1)
    job = lab.running(1)
    lab.wait(1000.0)
    lab.end(job, ExitFacts(exit_code=1))
    assert reconstruct(recorded(lab)).workload.jobs[0].runtime_s == 1002


def test_what_a_job_that_died_in_host_memory_had_computed_since_its_last_checkpoint_is_wasted() -> None:
    lab = Lab("fifo", gpus=1)
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.wait(1000.0)
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(10, 1, "/c", True)))
    lab.wait(300.0)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 30 * GIB, 10.0))
    lab.end(job, ExitFacts(signal=9, stop_requested=True, killed=True, swap_failure="ended while swapped out"))
    past = reconstruct(recorded(lab))
    assert past.workload.jobs[0].runtime_s == pytest.approx(1000, abs=5)
    assert past.live.wasted_gpu_s == pytest.approx(300, abs=5)
