"""Journals of older versions: they load, and mean what they always meant."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import EVENT_TYPES
from ebbtide_core.job.job import Attempt
from ebbtide_core.job.meter import Setting
from ebbtide_core.model.settings import PoolSettings, Settings
from ebbtide_core.model.types import WHOLE, JobId, Loan, StartFacts
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.store.sqlite import SqliteStore

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


class TestGoldenJournal:
    """Old journals keep loading. These files are never generated again: a change that needs it breaks a promise."""

    @pytest.fixture
    def old(self, path: Path) -> Iterator[SqliteStore]:
        with golden("journal-1", path) as store:
            yield store

    def test_it_folds_to_what_it_always_meant(self, old: SqliteStore) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        for line in old.events():
            cluster.replay(line.event, line.time)
        assert summary(cluster) == json.loads((GOLDEN / "journal-1.json").read_text())

    def test_it_keeps_its_identity_and_can_be_written(self, old: SqliteStore) -> None:
        assert old.cluster_id == "0123456789abcdef"
        assert old.next_epoch() == 3
        last = old.last_sequence
        old.append([(1.0, e.CancelRequested(JobId("1")))]).result()
        assert old.last_sequence == last + 1

    def test_priorities_and_weights_are_those_that_they_were_changed_to(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("priority", {}))
        with golden("journal-1-changes", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        standing = {job.id: (job.state.value, job.priority, job.weight) for job in cluster.state.jobs.values()}
        assert standing == {"1": ("SUSPENDED", 42, 0.5), "2": ("RUNNING", 5, 2.0)}

    def test_what_lay_in_host_memory_lies_there_again(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-swaps", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job, node = cluster.state.jobs["1"], cluster.state.nodes["a"]
        [attempt] = job.attempts
        assert (job.state.value, job.held_by.value, attempt.swaps, attempt.off_gpu) == ("SUSPENDED", "user", 2, True)
        assert (node.held.share("a0"), node.held.cpus, node.held.mem_bytes) == (0, 2.0, 38 << 30)

    def test_one_with_first_steps_gives_their_parts(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-starts", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        [attempt] = cluster.state.jobs["1"].attempts
        assert attempt.start == StartFacts(warm=True, import_s=0.5, load_s=None, step_s=2.0)

    def test_what_a_drill_measured_is_known_again(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-drills", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job = cluster.state.jobs["1"]
        assert (job.state.value, len(job.attempts), job.suspending.proved) == ("RUNNING", 2, True)
        assert (job.suspending.save_s, job.suspending.restart_cost_s) == (1.0, 7.0)

    def test_who_was_on_gpus_past_the_cluster_is_known_again_and_for_how_long(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-foreign", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        node = cluster.state.nodes["a"]
        assert {gpu: [found.pid for found in use.processes] for gpu, use in node.foreign.items()} == {"a0": [7, 8]}
        assert [*node.slices] == ["a1"]
        assert cluster.state.foreign_gpu_s == {"alice": 100.0, "bob": 1.0}

    def test_what_jobs_need_of_gpu_memory_is_known_again(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-memory", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job = cluster.state.jobs["2"]
        assert (job.state.value, len(job.attempts), job.gpu_memory.overruns, job.gpu_memory.alone_after) == (
            "RUNNING",
            3,
            1,
            2,
        )
        assert (job.gpu_memory.requested_bytes, job.gpu_memory.changed_because) == (
            8 << 30,
            "it ran out of 7.2 GiB in attempt 2",
        )
        assert (job.gpus_min, job.gpu_memory.peak_bytes) == (WHOLE, 7 << 30)
        assert [list(peaks) for peaks in cluster.state.peaks.values()] == [[4 << 30]]

    def test_what_was_measured_of_a_job_is_known_of_its_script(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-rates", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job = cluster.state.jobs["1"]
        curve = cluster.state.curve(job)
        assert [(at.share, at.alone, rate.steps_per_s, rate.samples) for at, rate in job.measured.rates.items()] == [
            (720720, True, 4.0, 3),
            (1441440, True, 6.0, 5),
        ]
        assert curve is not None
        assert curve(1441440) == 1.5
        assert cluster.state.anti_affinity.gpus(JobId("2"), cluster.state.nodes["a"]) == {}
        assert cluster.state.displaced == {"1": False}

    def test_which_gpus_are_reserved_is_known_again_and_who_does_not_use_its_own(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-bookings", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        [booking] = cluster.state.bookings.by_id.values()
        assert (booking.user, booking.since, booking.until, booking.note) == ("anna", 500.0, 9000.0, "demo")
        assert [booked.gpu for booked in booking.gpus] == ["a0", "a3"]
        assert cluster.state.pools["default"].books.booked is cluster.state.bookings
        [attempt] = cluster.state.jobs["1"].attempts
        assert (attempt.idle.since, attempt.idle.suspend_at) == (2010.0, None)

    def test_what_a_job_printed_is_known_again_and_where_it_does_not_go_because_of_it(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-printed", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job = cluster.state.jobs["1"]
        assert (job.eligibility.excluded, job.eligibility.excluded_gpus, job.retries.failures) == ({"b"}, {"a0"}, 0)
        assert job.reason == "failed with exit code 1: 'CUDA out of memory', not to be tried again"
        assert [rule.target for rule in job.spec.notify] == ["team"]

    def test_a_session_that_nobody_used_is_known_again(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-sessions", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job = cluster.state.jobs["1"]
        assert (job.spec.kind.value, job.attempts[0].unused_since) == ("shell", 1003.0)
        assert job.reason == "unused: ended in 10 min unless it is used"

    def test_scripts_that_are_part_of_a_job_are_and_edited_ones_are_named(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-scripts", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        first, second = cluster.state.jobs.values()
        assert first.spec.script.endswith("SLURM_JOB_ID\n")
        assert (first.spec.python_env, first.spec.slurm) == ("/venv", True)
        assert second.reason == "running; train.py was edited since submit"

    @pytest.mark.parametrize("configured", [True, False])
    def test_who_was_moved_is_in_its_pool_again_configured_or_not(self, tmp_path: Path, configured: bool) -> None:
        big = {"big": PoolSettings(policy="priority")} if configured else {}
        settings = Settings(pools={"default": PoolSettings(), **big})
        cluster = Cluster(create_policy("fitgpp", {}), settings=settings)
        with golden("journal-1-pools", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        found = {job.id: (job.state.value, job.pool, job.next.pool) for job in cluster.state.jobs.values()}
        assert found == {
            "1": ("RUNNING", "big", ""),
            "2": ("PENDING", "big", ""),
            "3": ("SUSPENDING", "default", "big"),
        }
        assert [*cluster.state.pools["big"].books.nodes] == ["b"]

    def test_what_a_job_needs_and_which_nodes_are_out_of_service_is_known_again(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-drains", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        job, nodes = cluster.state.jobs["1"], cluster.state.nodes
        assert (job.state.value, job.eligibility.constrained, job.eligibility.excluded) == ("PENDING", True, {"a"})
        assert job.spec.needs.select[0].values == ("lab", "den")
        assert (nodes["a"].drain.deadline, nodes["a"].drain.since, nodes["b"].drain) == (8207.0, 1007.0, None)
        assert (nodes["a"].facts.labels, nodes["a"].facts.taints) == ({"zone": "lab"}, ("gold",))

    def test_what_was_made_of_silent_nodes_and_set_aside_is_known_again(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fitgpp", {}))
        with golden("journal-1-fencing", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        jobs, node = cluster.state.jobs, cluster.state.nodes["b"]
        assert jobs["1"].attempts[0].end.outcome == "interrupted: its lease ended: node a was silent for 646 s"
        assert jobs["2"].attempts[0].end.outcome == "interrupted: node b was confirmed dead by the fence hook"
        assert jobs["2"].attempts[1].orphaned
        assert {(ref.job, ref.attempt): stray.grace_s for ref, stray in node.strays.items()} == {("77", 2): 9.0}
        assert node.quarantine == {"b0": "job 2 ended, but it is full"}
        assert (cluster.state.silent.doubted, cluster.state.unheard) == (frozenset(), {"a", "b", "c"})

    def test_who_was_held_back_is_held_back_again_and_who_was_given_up_is_over(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-arrays", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        jobs, array = cluster.state.jobs, cluster.state.gates.arrays[JobId("100")]
        assert {id: job.state.value for id, job in jobs.items() if job.state.finished} == {
            "100.0": "FAILED",
            "4": "CANCELLED",
        }
        assert (array.max_concurrent, array.unfinished, jobs["100.0"].lineage.again_as, jobs["6"].lineage.again_of) == (
            2,
            2,
            "6",
            "100.0",
        )
        assert [job.admission is None or job.admission.admitted for job in jobs.values()] == [
            False,
            True,
            True,
            False,
            True,
            True,
        ]

    def test_who_paused_at_a_rung_went_on_or_was_given_up_there(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-sweeps", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        sweep = cluster.state.halvings[JobId("1")]
        results = {id: (task.results, task.passed, task.over) for id, task in sweep.tasks.items()}
        assert results == {
            "1.0": ([4.0, 4.0], 1, True),
            "1.1": ([None], 0, True),
            "1.2": ([1.0, 1.0], 2, False),
            "1.3": ([2.0], 1, False),
        }
        reason = "stopped early at 100 steps: loss no number is number 3 of 3"
        assert (cluster.state.jobs[JobId("1.1")].reason, sweep.promotable(), sweep.hopeless()) == (reason, [], [])

    def test_ids_that_were_skipped_are_not_given_out(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-restored", tmp_path / "journal.db") as store:
            assert store.restored == 2000.5
            for line in store.events():
                cluster.replay(line.event, line.time)
        state = cluster.state
        assert [*state.jobs] == ["1"]
        assert state.gates.next_id(state.submissions) == "1002"

    def test_what_was_lost_by_a_suspension_is_known(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-unsaved", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        [suspension] = cluster.state.jobs[JobId("1")].suspensions
        assert (suspension.kept_step, suspension.left_step) == (110, 340)
        assert suspension.lost == "steps 110-340 will be repeated"

    def test_what_was_removed_is_known_no_more(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-removed", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        assert (list(cluster.state.jobs), list(cluster.state.nodes)) == (["2"], ["b"])

    def test_what_began_while_the_clock_was_ahead_began_before_it_was_set_right(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-clock", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
                now = line.time
        assert (now, cluster.state.jobs[JobId("1")].running_s(now)) == (1105.0, 100.0)

    def test_nodes_end_when_that_was_said_last(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-loans", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        assert {id: node.loan for id, node in cluster.state.nodes.items()} == {"a": Loan(1067.0, "ann"), "b": None}
        attempts = cluster.state.jobs[JobId("1")].attempts
        assert [attempt.allocation.node_ids for attempt in attempts] == [("a",), ("b",)]
        assert attempts[0].stop is not None
        assert attempts[0].stop.grace_s == 50.0

    def test_what_was_forgotten_is_known_of_its_script(self, tmp_path: Path) -> None:
        cluster = Cluster(create_policy("fifo", {}))
        with golden("journal-1-compacted", tmp_path / "journal.db") as store:
            for line in store.events():
                cluster.replay(line.event, line.time)
        state, script = cluster.state, ("ann", "train")
        assert (state.jobs, state.submissions, state.known_since) == ({}, 3, 5000.0)
        assert {key: list(runs) for key, runs in state.history.runs.items()} == {script: [(20.0, 10.0)]}
        assert {key: list(peaks) for key, peaks in state.peaks.items()} == {script: [1 << 30]}
        assert state.rates.typical(script, Setting(720720, 1, "A100", True)) == 2.5

    def test_together_they_have_every_event_that_can_be_in_a_journal(self, old: SqliteStore, tmp_path: Path) -> None:
        durable = {name for name, kind in EVENT_TYPES.items() if kind.durable}
        found = {type(line.event).__name__ for line in old.events()}
        for name in (
            "journal-1-changes",
            "journal-1-swaps",
            "journal-1-starts",
            "journal-1-drills",
            "journal-1-foreign",
            "journal-1-memory",
            "journal-1-rates",
            "journal-1-bookings",
            "journal-1-printed",
            "journal-1-sessions",
            "journal-1-pools",
            "journal-1-drains",
            "journal-1-fencing",
            "journal-1-arrays",
            "journal-1-sweeps",
            "journal-1-administration",
            "journal-1-restored",
            "journal-1-compacted",
            "journal-1-unsaved",
            "journal-1-removed",
            "journal-1-loans",
            "journal-1-clock",
        ):
            (tmp_path / name).mkdir()  # a home has one journal
            with golden(name, tmp_path / name / "journal.db") as newer:
                found |= {type(line.event).__name__ for line in newer.events()}
        assert found == durable

    def test_it_is_of_an_older_shape_than_today(self, old: SqliteStore, path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            bodies = [(kind, json.loads(body)) for kind, body in db.execute("SELECT kind, body FROM events")]
        missing = [field.name for kind, body in bodies for field in fields(EVENT_TYPES[kind]) if field.name not in body]
        assert missing
        assert any("colour" in body.get("spec", {}) for _, body in bodies)


@contextlib.contextmanager
def golden(name: str, path: Path) -> Iterator[SqliteStore]:
    """A golden journal, copied to ``path``."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((GOLDEN / f"{name}.sql").read_text())
    with closing(SqliteStore(path)) as store:
        yield store


def _attempt(attempt: Attempt) -> list[Any]:
    end = attempt.end
    ended, outcome = (None, "") if end is None else (end.at, end.outcome)
    return [attempt.started, ended, attempt.freed, outcome]


def summary(cluster: Cluster) -> dict[str, Any]:
    """What matters of a cluster's state, in JSON."""
    state = cluster.state
    return {
        "epoch": state.epoch,
        "quiesced": state.quiesced,
        "operations": dict(state.operations),
        "jobs": {
            job.id: {
                "state": job.state.value,
                "reason": job.reason,
                "held_by": job.held_by.value if job.held_by else None,
                "user": job.user,
                "gpus": [job.gpus_min, job.gpus_max],
                "submitted": job.submitted,
                "ended": job.end and job.end.at,
                "exit_code": job.exit_code,
                "checkpoint": job.saved.checkpoint.step if job.saved.checkpoint else None,
                "counts": [
                    job.suspending.preemptions,
                    job.suspending.resizes,
                    job.retries.restarts,
                    job.retries.failures,
                    job.suspending.fruitless_in_row,
                ],
                "ran_s": job.times.ran_s,
                "attempts": [_attempt(attempt) for attempt in job.attempts],
                "suspensions": [[s.requested, s.exited, s.gpu_free, s.resumed] for s in job.suspensions],
            }
            for job in state.jobs.values()
        },
        "nodes": {
            node.id: {
                "held": {gpu: share for gpu in node.gpus if (share := node.held.share(gpu))},
                "promised": {gpu: share for gpu in node.gpus if (share := node.promised.share(gpu))},
                "unhealthy": sorted(gpu for gpu, facts in node.gpus.items() if not facts.healthy),
                "attempts": sorted(node.attempts),
            }
            for node in state.nodes.values()
        },
    }
