"""The core against a world that holds the truth: what must hold whatever happens, and what in the end."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, ExitFacts, JobState
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from tests.core.lab import GIB
from tests.core.resources.test_indexes import check_indexes
from tests.core.world import NODES, World
from tests.drawing import share_of


class WatchedWorld(World):
    """The world, and what must never be seen in it."""

    @invariant()
    def no_gpu_is_used_beyond_what_it_has(self) -> None:
        used: dict[str, int] = {}
        for process in getattr(self, "processes", {}).values():
            if not process.free and not (process.out and not process.coming):
                for gpu, share in process.gpus.items():
                    used[gpu] = used.get(gpu, 0) + share
        assert all(share <= WHOLE for share in used.values()), used

    @invariant()
    def no_gpu_gives_more_memory_than_it_has(self) -> None:
        given: dict[str, int] = {}
        for process in getattr(self, "processes", {}).values():
            if not process.free and not (process.out and not process.coming):
                for gpu, size in process.memory.items():
                    given[gpu] = given.get(gpu, 0) + size
        assert all(size <= 40 * GIB for size in given.values()), given

    @invariant()
    def who_has_a_gpu_of_its_own_has_it_for_good(self) -> None:
        for job in self.cluster.state.jobs.values() if hasattr(self, "cluster") else ():
            assert job.gpu_memory.overruns < 2 or not job.preemptible or job.range_changed, job

    @invariant()
    def what_is_indexed_is_what_there_is(self) -> None:
        if hasattr(self, "cluster"):
            check_indexes(self.cluster.state)

    @invariant()
    def no_job_has_two_live_attempts(self) -> None:
        alive = {process.ref for process in getattr(self, "processes", {}).values() if process.alive}
        assert len(alive) == len({ref.job for ref in alive}), alive

    @invariant()
    def no_attempt_is_taken_for_over_before_it_is_on_all_of_its_nodes(self) -> None:
        for process in getattr(self, "processes", {}).values():
            attempt = self.cluster.state.jobs[process.ref.job].attempts[process.ref.attempt - 1]
            assert attempt.end is None or not process.alive, process
            assert attempt.freed is None or process.free, process

    @invariant()
    def no_accepted_job_is_missing_and_finished_ones_stay_so(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for id in self.accepted:
            job = self.cluster.job(id)
            if job is None:
                continue  # it was refused
            assert self.finished.get(id, job.state) is job.state
            if job.state.finished:
                self.finished[id] = job.state

    @invariant()
    def the_journal_folds_to_what_the_core_has(self) -> None:
        if not hasattr(self, "cluster"):
            return
        again = self.new_cluster()
        for now, event in self.journal:
            again.replay(event, now)
        for id, job in self.cluster.state.jobs.items():
            twin = again.state.jobs[id]
            if job.state is not JobState.UNREACHABLE:
                assert (twin.attempts, twin.planned, twin.end) == (job.attempts, job.planned, job.end)
                assert (twin.priority, twin.weight) == (job.priority, job.weight)
                assert twin.measured.rates == job.measured.rates
                assert twin.waiting_s(self.now) == job.waiting_s(self.now)
                assert (twin.gpus_min, twin.gpus_max, twin.gpu_memory) == (job.gpus_min, job.gpus_max, job.gpu_memory)
                # That a delay is over is no event; but where both wait in the queue, they have the same place.
                assert twin.queued is None or job.queued is None or twin.queued == job.queued

    def teardown(self) -> None:
        """Once everything has calmed down, everything that could finish has finished or waits for its user."""
        if not hasattr(self, "cluster"):
            return
        for node in NODES:
            self.connect(node)
        for gpu in sorted(self.foreign):
            self.come_or_go_past_the_cluster(gpu[0], int(gpu[1]))
        for _ in range(60):
            self.now += 1000.0
            for process in list(self.processes.values()):
                if process.alive:
                    self._end(process, ExitFacts())
                if not process.alive and not process.free:
                    self._release(process)
            mail, self.mail = self.mail, []
            for _, status in mail:
                self._tell_all(status)
            self.tell(e.SchedulingDue())
        for job in self.cluster.state.jobs.values():
            waits = job.state in (JobState.PENDING, JobState.SUSPENDED) and job.holding is None
            may_wait = waits and (job.held_by is not None or self.has_no_room_for(job))
            assert job.state.finished or may_wait, (job.id, job.state, job.reason)

    def has_no_room_for(self, job: Job) -> bool:
        """Whether it would wait for ever, for what its user wants is nowhere."""
        return False


def histories(count: int) -> settings:
    """So many, of 40 steps each."""
    return settings(
        max_examples=count,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


TestWorld = WatchedWorld.TestCase
TestWorld.settings = histories(share_of(100))


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestManyHistories(WatchedWorld.TestCase):
    settings = histories(600)
