"""Pools of nodes: each is scheduled by its own policy, and what belongs to one stays there until somebody moves it."""

from dataclasses import replace

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.commands import WakeAt
from ebbtide_core.model.settings import Fitting, PoolSettings, Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId, JobState, StopCause, SuspendMode
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.digest import digest
from ebbtide_core.views.explain import explain
from ebbtide_core.views.narrate import narrate

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, registration, stepped_aside, stopped

BIG = PoolSettings(policy="priority")


class Pools(Lab):
    """A lab with the pool ``default`` (fitgpp, node a) and others; node names are those of ``nodes``."""

    def __init__(self, gpus: int = 2, nodes: dict[str, str] | None = None, **pools: PoolSettings) -> None:
        super().__init__(nodes="")
        self.settings = Settings(pools={"default": PoolSettings(), **pools})
        self.restart(self.settings)
        for pool, names in (nodes or {"default": "a", "big": "b"}).items():
            for name in names:
                self.tell(registration(name, gpus, pool=pool))

    def restart(self, settings: Settings) -> None:
        """A new master, with these settings, folds the journal."""
        default = settings.pools["default"]
        self.cluster = Cluster(create_policy(default.policy, default.options), settings=settings)
        for now, event in self.journal:
            self.cluster.replay(event, now)

    def move(self, job, pool: str):
        """A user wants ``job`` there; refused if it is returned."""
        event = e.JobMoved(job.id, pool, job.pool, "ann")
        if (refusal := self.cluster.refusal(event)) is not None:
            return refusal
        self.tell(event)
        return None


def test_a_job_starts_on_the_nodes_of_its_pool_only() -> None:
    lab = Pools(big=BIG)
    here, there = lab.submit(1), lab.submit(1, pool="big")
    assert (gpus_of(here), gpus_of(there)) == ({"a0"}, {"b0"})
    assert (here.pool, there.pool) == ("default", "big")


def test_a_full_pool_makes_nobody_wait_in_another_and_nobody_uses_what_is_idle_there() -> None:
    lab = Pools(big=BIG)
    lab.running(2)
    waits, starts = lab.submit(1), lab.submit(2, pool="big")
    assert waits.state is JobState.PENDING
    assert waits.reason == "waiting for 1 GPU in pool default"
    assert gpus_of(starts) == {"b0", "b1"}


def test_the_policy_of_a_pool_takes_victims_from_that_pool_only() -> None:
    lab = Pools(big=BIG)
    default, big = lab.running(2), lab.running(2, pool="big", priority=50)
    urgent = lab.submit(2, pool="big", priority=1)
    assert stopped(lab.last) == {big.id}
    lab.settle()
    assert urgent.state is JobState.RUNNING
    assert default.suspending.preemptions == 0


def test_a_pool_in_which_nothing_changed_is_not_planned() -> None:
    lab = Pools(big=BIG)
    lab.running(2)
    lab.submit(1)
    asked = []

    class Asked:
        def plan(self, snapshot):
            asked.append(snapshot.now)
            raise AssertionError

    lab.cluster.policies["default"] = Asked()
    lab.running(1, pool="big")
    assert not asked
    with pytest.raises(AssertionError):
        lab.submit(1)


def test_the_time_at_which_a_policy_wants_to_look_again_is_not_forgotten_for_that_of_another_pool() -> None:
    lab = Pools(big=BIG)
    early, late = lab.cluster.state.pools["big"], lab.cluster.state.pools["default"]
    early.recheck_at, late.recheck_at = lab.now + 50.0, lab.now + 100.0
    lab.cluster._wake_at = early.recheck_at
    lab.now += 50.0
    commands = lab.cluster.handle(e.SchedulingDue(), lab.now)
    assert [command.time for command in commands if isinstance(command, WakeAt)] == [late.recheck_at]


# --- what is refused ---


def test_a_pool_that_does_not_exist_is_refused_with_those_that_do() -> None:
    lab = Pools(big=BIG)
    spec = JobSpec(command=("x",), workdir="/", pool="small")
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("1"), spec, "ann"))
    assert refusal.message == "--pool: there is no pool 'small': there are default, big"
    job = lab.submit(1)
    refusal = lab.move(job, "small")
    assert (refusal.kind, refusal.message) == (
        RefusalKind.INVALID,
        "--pool: there is no pool 'small': there are default, big",
    )


def test_what_no_node_of_its_pool_could_run_is_impossible_there() -> None:
    lab = Pools(big=BIG)
    lab.tell(registration("c", 4, pool="big"))
    spec = JobSpec(command=("x",), workdir="/", gpus_min=4 * 720720, gpus_max=4 * 720720)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("1"), spec, "ann"))
    assert refusal.message == "--gpus: 4 is more than the 2 of the largest node in pool default"
    assert lab.cluster.refusal(e.JobSubmitted(JobId("1"), replace(spec, pool="big"), "ann")) is None
    job = lab.submit(4, pool="big")
    assert lab.move(job, "default").message == "--gpus: 4 is more than the 2 of the largest node in pool default"


def test_a_job_on_its_way_to_another_pool_is_not_resized_to_what_no_node_there_has() -> None:
    lab = Pools(big=BIG, nodes={"default": "", "big": ""})
    for name, pool, gpus in (("a", "default", 4), ("b", "big", 2)):
        lab.tell(registration(name, gpus, pool=pool, checkpoint_root_id="shared"))
    job = lab.running(2)
    assert lab.move(job, "big") is None
    refusal = lab.cluster.refusal(e.ResizeRequested(job.id, 3 * 720720, 3 * 720720))
    assert refusal.message == "--gpus: 3 is more than the 2 of the largest node in pool big"


# --- jobs that are moved ---


def test_a_waiting_job_is_moved_at_once() -> None:
    lab = Pools(big=BIG)
    lab.running(2)
    job = lab.submit(1)
    assert lab.move(job, "big") is None
    assert (job.pool, gpus_of(job)) == ("big", {"b0"})


def test_a_running_job_steps_aside_and_goes_on_in_the_other_pool() -> None:
    lab = Pools(big=BIG, nodes={"default": "", "big": ""})
    for name, pool in (("a", "default"), ("b", "big")):
        lab.tell(registration(name, 2, pool=pool, checkpoint_root_id="shared"))
    job, other = lab.running(2), lab.submit(1)
    assert lab.move(job, "big") is None
    assert (job.state, job.reason) == (JobState.SUSPENDING, "stepping aside to go on in pool big")
    assert (job.pool, job.attempts[-1].stop.cause) == ("default", StopCause.MOVED)
    lab.exit(job)
    assert (job.pool, other.state) == ("default", JobState.PENDING)  # its GPUs are not proven free
    lab.free(job)
    assert (job.pool, gpus_of(job), gpus_of(other)) == ("big", {"b0", "b1"}, {"a0"})
    assert (job.suspending.preemptions, job.retries.failures) == (0, 0)
    assert [entry.reason for entry in job.suspensions] == ["stepping aside to go on in pool big"]


def test_a_job_may_turn_back_before_it_has_left() -> None:
    lab = Pools(big=BIG)
    job = lab.running(1, move_checkpoints=True)
    lab.move(job, "big")
    lab.move(job, "default")
    lab.end(job)
    assert (job.pool, gpus_of(job)) == ("default", {"a0"})


def test_room_that_is_kept_for_a_job_is_given_up_when_it_leaves() -> None:
    lab = Pools(big=BIG)
    victim = lab.running(2, pool="big", priority=50)
    urgent = lab.submit(2, pool="big", priority=1)
    assert urgent.claiming
    lab.move(urgent, "default")
    assert gpus_of(urgent) == {"a0", "a1"}
    lab.end(victim)
    assert gpus_of(victim) == {"b0", "b1"}


def test_who_is_never_suspended_stays_until_it_ends() -> None:
    lab = Pools(big=BIG)
    job = lab.running(1, suspend=SuspendMode.NONE)
    refusal = lab.move(job, "big")
    assert refusal.kind is RefusalKind.CONFLICT
    assert refusal.message == (
        "job 1 was submitted with --suspend none: it never steps aside, and stays in pool default until it ends"
    )


def test_who_has_its_checkpoint_where_the_other_pool_cannot_read_it_is_refused_unless_it_is_copied() -> None:
    lab = Pools(big=BIG)
    stays, moves = lab.running(1), lab.running(1, move_checkpoints=True)
    assert lab.move(stays, "big").message == (
        "job 1 has its checkpoint on node a, which no node of pool big can read:"
        " only a job submitted with --move-checkpoints could go there"
    )
    assert lab.move(moves, "big") is None
    lab.end(moves)
    [launch] = [command for command in lab.last if type(command).__name__ == "Launch"]
    assert (launch.nodes, launch.source) == (("b",), "a")


def test_a_job_that_is_moved_while_a_user_holds_it_waits_for_that_user_there() -> None:
    lab = Pools(big=BIG)
    job = lab.submit(1, hold=True)
    lab.move(job, "big")
    assert (job.pool, job.state) == ("big", JobState.PENDING)
    lab.tell(e.ReleaseRequested(job.id))
    assert gpus_of(job) == {"b0"}


def test_a_job_that_ends_on_its_way_has_ended() -> None:
    lab = Pools(big=BIG)
    job = lab.running(1, move_checkpoints=True)
    lab.move(job, "big")
    lab.end(job, DONE)
    assert (job.state, job.pool) == (JobState.COMPLETED, "default")


def test_a_job_that_runs_in_a_pool_where_it_was_moved_can_be_preempted_there() -> None:
    lab = Pools(big=BIG)
    job = lab.submit(2, hold=True, priority=50)
    lab.move(job, "big")
    lab.tell(e.ReleaseRequested(job.id))
    lab.start(job)
    lab.submit(2, pool="big", priority=1)
    assert stopped(lab.last) == {job.id}


@pytest.mark.parametrize("policy", ["fair-share", "priority", "hybrid", "rigid-shortest", "malleable-equipartition"])
def test_no_policy_has_a_trace_left_of_a_job_that_has_moved(policy) -> None:
    lab = Pools(big=PoolSettings(policy=policy), nodes={"default": "", "big": ""})
    for name, pool in (("a", "default"), ("b", "big")):
        lab.tell(registration(name, 2, pool=pool, checkpoint_root_id="shared"))
    running, waiting = lab.running(2, pool="big"), lab.submit(2, pool="big")
    for job in (running, waiting):
        assert lab.move(job, "default") is None
    lab.settle()
    for job in (running, waiting):
        lab.tell(e.CancelRequested(job.id, now=True))
    lab.settle()
    last = lab.running(2, pool="big")
    lab.end(last, DONE)
    pool = lab.cluster.state.pools["big"]
    assert (len(pool.queue), pool.planned, pool.claims, pool.elastic.jobs, pool.came_back.jobs) == (0, {}, {}, {}, {})


def test_what_was_moved_is_where_it_was_when_the_journal_is_folded() -> None:
    lab = Pools(big=BIG)
    waiting = lab.submit(1, hold=True)
    running = lab.running(1, move_checkpoints=True)
    lab.move(waiting, "big")
    lab.move(running, "big")
    lab.exit(running)
    before = digest(lab.cluster.state)
    lab.restart(lab.settings)
    assert digest(lab.cluster.state) == before
    twin = lab.cluster.state.jobs[running.id]
    assert (twin.pool, twin.next.pool) == ("default", "big")
    assert lab.cluster.state.jobs[waiting.id].pool == "big"


def test_a_move_in_words() -> None:
    assert narrate(e.JobMoved(JobId("1"), "big", "default", "ann")) == "pool default → big by ann"


# --- pools that are configured no more ---


def test_jobs_of_a_pool_that_is_configured_no_more_wait_and_say_so_and_go_on_when_it_is_back() -> None:
    lab = Pools(big=BIG)
    running, waiting = lab.running(2, pool="big"), lab.submit(1, pool="big")
    lab.restart(Settings())
    lab.tell(e.MasterStarted(2))
    lab.tell(registration("a", 2))
    lab.tell(registration("b", 2, pool="big", known=lab.known(running)))
    running, waiting = (lab.cluster.state.jobs[job.id] for job in (running, waiting))
    assert running.state is JobState.RUNNING
    assert waiting.reason == (
        f"pool big is not configured any more: 'ebb set {waiting.id} --pool NAME' moves it to another"
    )
    lab.end(running, DONE)
    assert waiting.state is JobState.PENDING
    lab.restart(lab.settings)
    lab.tell(e.MasterStarted(3))
    lab.tell(registration("b", 2, pool="big"))
    assert gpus_of(lab.cluster.state.jobs[waiting.id]) == {"b0"}


def test_a_job_of_a_pool_that_is_configured_no_more_goes_on_where_it_is_moved() -> None:
    lab = Pools(big=BIG)
    lab.running(2, pool="big")
    waiting = lab.submit(1, pool="big")
    lab.restart(Settings())
    lab.tell(e.MasterStarted(2))
    for name, pool in (("a", "default"), ("b", "big")):
        lab.tell(registration(name, 2, pool=pool, known=lab.known(lab.cluster.state.jobs["1"])))
    waiting = lab.cluster.state.jobs[waiting.id]
    assert lab.move(waiting, "default") is None
    assert gpus_of(waiting) == {"a0"}


def test_room_that_was_kept_in_a_pool_that_is_configured_no_more_is_given_up() -> None:
    lab = Pools(big=BIG)
    victim = lab.running(2, pool="big", priority=50)
    urgent = lab.submit(2, pool="big", priority=1)
    lab.restart(Settings())
    lab.tell(e.MasterStarted(2))
    lab.tell(registration("b", 2, pool="big", known=lab.known(victim)))
    urgent = lab.cluster.state.jobs[urgent.id]
    assert (urgent.planned, urgent.state) == (None, JobState.PENDING)


# --- nodes ---


def test_a_node_where_nothing_runs_gets_into_the_pool_that_it_names() -> None:
    lab = Pools(big=BIG)
    waiting = lab.submit(2, pool="big", hold=True)
    lab.tell(registration("a", 2, pool="big"))
    lab.tell(e.ReleaseRequested(waiting.id))
    pools = lab.cluster.state.pools
    assert (list(pools["default"].books.nodes), list(pools["big"].books.nodes)) == ([], ["b", "a"])
    assert pools["default"].books.room.total == 0
    assert pools["big"].books.room.total == 2
    assert lab.cluster.state.nodes["a"].facts.pool == "big"


# --- fitting ---


@pytest.mark.parametrize(("fitting", "node"), [(Fitting.BEST, "b"), (Fitting.WORST, "a")])
def test_a_rigid_job_gets_the_fullest_or_the_emptiest_node(fitting, node) -> None:
    lab = Pools(gpus=4, nodes={"big": "ab"}, big=PoolSettings(policy="priority", fitting=fitting))
    lab.running(4, pool="big")
    lab.running(3, pool="big")
    lab.end(lab.cluster.state.jobs["1"], DONE)
    job = lab.running(1, pool="big")
    assert min(gpus_of(job))[0] == node


# --- what is said ---


def test_explain_names_the_pool_and_shows_its_nodes_only() -> None:
    lab = Pools(big=BIG)
    lab.running(2, pool="big")
    job = lab.submit(1, pool="big")
    explanation = explain(lab.cluster.state, job, lab.now)
    assert explanation.needs == "1 GPU in pool big"
    assert [view.node for view in explanation.nodes] == ["b"]


def test_with_one_pool_nobody_hears_of_pools() -> None:
    lab = Lab(nodes="a", gpus=1)
    lab.running(1)
    job = lab.submit(1)
    assert job.reason == "waiting for 1 GPU"
    assert explain(lab.cluster.state, job, lab.now).needs == "1 GPU"


def test_a_job_without_gpus_is_bound_to_the_cpus_and_memory_of_its_pool() -> None:
    lab = Pools(big=BIG)
    first = lab.running(0, pool="big", cpus=30.0, mem_bytes=GIB)
    second = lab.submit(0, pool="big", cpus=30.0)
    assert (first.attempts[0].allocation.node_ids, second.state) == (("b",), JobState.PENDING)
    assert lab.submit(0, cpus=30.0).attempts[0].allocation.node_ids == ("a",)


def test_the_gpus_that_a_job_left_behind_are_launched_on_by_the_others_of_its_pool() -> None:
    lab = Pools(big=BIG)
    job, waits = lab.running(2, move_checkpoints=True), lab.submit(2)
    lab.move(job, "big")
    lab.end(job, stepped_aside())
    assert launched(lab.last) == {job.id, waits.id}
