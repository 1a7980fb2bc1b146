"""Any history of submits, ends, holds, changed limits: who has a seat is what a naive model works out from scratch."""

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Record
from ebbtide_core.model.dependency import AfterKind, Dependency, is_met, is_ok
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ExitFacts, JobId, Task
from ebbtide_core.policies.registry import create_policy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.lab import DONE, Lab, registration
from tests.drawing import share_of

QUOTAS = Quotas(Quota(), {"ann": Quota(4 * WHOLE, None), "bob": Quota(2 * WHOLE, None)})
OPTIONS = {"resize_after_s": "0"}
"""Of a policy that resizes at once, so that room is kept for jobs."""
USERS = st.sampled_from(["ann", "bob", "eve"])
LIMIT = st.integers(0, 3)
GPUS = st.sampled_from([None, 0, 2, 4])
WISHES = [
    e.HoldRequested,
    e.ReleaseRequested,
    e.CancelRequested,
    e.SuspendRequested,
    e.ResumeRequested,
    e.RequeueRequested,
]


class Model:
    """Works out from all jobs who has a seat now, given who had one before."""

    def __init__(self, lab):
        self.lab = lab
        self.quotas = lab.cluster.state.settings.quotas
        self.limits = {}
        self.admitted = set()

    @property
    def jobs(self):
        return self.lab.cluster.state.jobs

    def stays(self, job):
        return job.end is None and job.held_by is None

    def has_room(self, job):
        return job.planned is not None or job.holding is not None

    def caps(self, job):
        """Those that count for it, as (members, most jobs, most parts)."""
        if job.lineage.task is not None:
            jobs, slots = self.limits[job.lineage.task.array]
            yield ("array", job.lineage.task.array), jobs or 10**9, (slots or 10**9) * WHOLE
        quota = self.quotas.of(job.user)
        if quota.gpus is not None and job.gpus_min:
            yield ("user", job.user), 10**9, quota.gpus

    def use(self, cap):
        members = [self.jobs[id] for id in self.admitted]
        inside = [job for job in members if cap in [one for one, _, _ in self.caps(job)]]
        return len(inside), sum(job.gpus_min for job in inside)

    def leave(self, jobs):
        for job in jobs:
            if job.id not in self.admitted or self.has_room(job):
                continue
            over = any(self.use(cap)[0] > most or self.use(cap)[1] > parts for cap, most, parts in self.caps(job))
            if not self.stays(job) or over:
                self.admitted.discard(job.id)

    def enter(self):
        """All who may, in order of submission; who does not fit has those behind it wait."""
        self.admitted |= {job.id for job in self.jobs.values() if self.has_room(job)}
        blocked = set()
        for job in sorted(self.jobs.values(), key=lambda job: job.sequence):
            if job.id in self.admitted or not self.may(job):
                continue
            caps = list(self.caps(job))
            if any(cap in blocked for cap, _, _ in caps) or self.is_too_large(job):
                continue
            for cap, most, parts in caps:
                count, used = self.use(cap)
                if count + 1 > most or used + job.gpus_min > parts:
                    blocked.add(cap)
                    break
            else:
                self.admitted.add(job.id)

    def is_too_large(self, job):
        """It is larger than its user's quota, which was lowered since: no other job waits for it."""
        quota = self.quotas.of(job.user).gpus
        return quota is not None and job.gpus_min > quota

    def may(self, job):
        met = [self.verdict(dependency) for dependency in job.spec.after]
        return self.stays(job) and all(met) and job.spec.begin_at <= self.lab.now

    def verdict(self, dependency):
        named = [
            job for job in self.jobs.values() if dependency.job in (job.id, job.lineage.task and job.lineage.task.array)
        ]
        over = [job.state for job in named if job.state.finished]
        return is_met(dependency.kind, len(named) - len(over), sum(not is_ok(state) for state in over))


class Gates(RuleBasedStateMachine):
    quotas = QUOTAS

    def __init__(self):
        super().__init__()
        self.lab = Lab("fifo", nodes="")
        self.lab.cluster = Cluster(create_policy("fifo", OPTIONS), settings=Settings(quotas=self.quotas))
        self.model = Model(self.lab)
        self.lab.tell(registration("a", 6))
        self.count = 0

    def tell(self, event):
        """Hand it in, with a pass of the policy before and after, and let the model follow each."""
        self.lab.now += 1.0
        for fact in (e.SchedulingDue(), event, e.SchedulingDue()):
            commands = self.lab.cluster.handle(fact, self.lab.now)
            self.lab.journal += [(self.lab.now, command.event) for command in commands if isinstance(command, Record)]
            self.follow()

    def follow(self):
        about = sorted(self.model.jobs.values(), key=lambda job: job.sequence, reverse=True)
        self.model.leave(about)
        self.model.enter()

    def some(self, data, wanted):
        return data.draw(st.sampled_from(sorted(wanted, key=lambda job: job.sequence)))

    def spec(self, data, gpus):
        known = [*self.lab.cluster.state.jobs, *self.model.limits]
        names = data.draw(st.lists(st.sampled_from(sorted(known)), max_size=2)) if known else []
        kinds = st.sampled_from(AfterKind)
        after = tuple(Dependency(JobId(name), data.draw(kinds)) for name in names)
        most = gpus + data.draw(st.integers(0, 3)) if gpus else 0
        begin_at = data.draw(st.sampled_from([0.0, 0.0, self.lab.now + 3.5]))
        return JobSpec(command=("x",), workdir="/", gpus_min=gpus * WHOLE, gpus_max=most * WHOLE, after=after,
                       begin_at=begin_at)  # fmt: skip

    @rule(data=st.data(), user=USERS, gpus=st.integers(0, 2), hold=st.booleans())
    def submit(self, data, user, gpus, hold):
        self.count += 1
        self.tell(e.JobSubmitted(JobId(str(self.count)), self.spec(data, gpus), user, hold))

    @rule(data=st.data(), user=USERS, gpus=st.integers(0, 2), size=st.integers(1, 4), jobs=LIMIT, slots=LIMIT)
    def submit_array(self, data, user, gpus, size, jobs, slots):
        self.count += 1
        id, spec = JobId(str(self.count)), self.spec(data, gpus)
        slots = max(slots, gpus) if slots else 0
        self.model.limits[id] = jobs, slots
        for index in range(size):
            task = Task(id, index, size, {}, jobs, slots * WHOLE)
            self.tell(e.JobSubmitted(JobId(f"{id}.{index}"), spec, user, task=task))

    @precondition(lambda self: self.model.limits)
    @rule(data=st.data(), jobs=LIMIT, slots=LIMIT)
    def change_limits(self, data, jobs, slots):
        id = data.draw(st.sampled_from(sorted(self.model.limits)))
        old = self.model.limits[id]
        slots = max(slots, 2) if slots else 0
        self.model.limits[id] = jobs, slots
        self.tell(e.ArrayChanged(id, jobs, slots * WHOLE, old[0], old[1] * WHOLE))

    @rule(ann=GPUS, bob=GPUS)
    def change_quotas(self, ann, bob):
        """As ``ebb master reload`` does: whoever has another quota and no room has their seat anew, or not."""
        named = {name: Quota(gpus * WHOLE) for name, gpus in (("ann", ann), ("bob", bob)) if gpus is not None}
        before, self.model.quotas = self.model.quotas, Quotas(Quota(), named)
        for job in self.model.jobs.values():
            changed = before.of(job.user) != self.model.quotas.of(job.user)
            if changed and job.id in self.model.admitted and not self.model.has_room(job):
                self.model.admitted.discard(job.id)
        self.lab.cluster.reconfigure(Settings(quotas=self.model.quotas), self.lab.now)
        self.follow()
        self.tell(e.SchedulingDue())

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), wish=st.sampled_from(WISHES))
    def wish(self, data, wish):
        event = wish(self.some(data, self.unfinished).id)
        if self.lab.cluster.refusal(event) is None:
            self.tell(event)

    @precondition(lambda self: [job for job in self.unfinished if job.live is not None])
    @rule(data=st.data(), ends=st.sampled_from([DONE, ExitFacts(exit_code=1), None]), freed=st.booleans())
    def go_on(self, data, ends, freed):
        """An attempt starts, or ends."""
        job = self.some(data, [job for job in self.unfinished if job.live is not None])
        attempt = job.attempts[-1]
        if attempt.started is None:
            self.tell(e.AttemptStarted(job.id, attempt.number, 7))
        elif attempt.stop is not None or ends is not None:
            asked = attempt.stop is not None
            facts = ExitFacts(exit_code=85, stop_requested=True, delivered=True, caught=True, acknowledged=True)
            self.tell(e.AttemptExited(job.id, attempt.number, facts if asked else ends, freed=freed))

    @rule()
    def free(self):
        for job in list(self.model.jobs.values()):
            if job.live is None and job.holding is not None:
                self.tell(e.AttemptFreed(job.id, len(job.attempts)))

    @property
    def unfinished(self):
        return list(self.lab.cluster.state.unfinished.values())

    @invariant()
    def the_same_have_seats(self):
        seated = {job.id for job in self.model.jobs.values() if job.admission is None or job.admission.admitted}
        free = {job.id for job in self.model.jobs.values() if job.admission is None}
        assert seated - free == self.model.admitted - free

    @invariant()
    def only_who_has_a_seat_is_in_the_queue(self):
        queued = {job.id for job in self.lab.cluster.state.pools["default"].queue}
        for job in self.model.jobs.values():
            wants = job.waiting and job.planned is None and job.next.not_before <= self.lab.now
            assert (job.id in queued) == (wants and (job.admission is None or job.admission.admitted)), job.id

    @invariant()
    def whoever_can_never_start_is_cancelled(self):
        for job in self.unfinished:
            if not job.attempts:
                assert all(self.model.verdict(dependency) is not False for dependency in job.spec.after)

    @invariant()
    def elastic_jobs_may_have_what_is_left_over_and_no_more(self):
        seated = [job for job in self.model.jobs.values() if job.id in self.model.admitted]
        caps = {cap: parts for job in seated for cap, _, parts in self.model.caps(job)}
        for cap, parts in caps.items():
            inside = [job for job in seated if cap in [one for one, _, _ in self.model.caps(job)]]
            assert sum(job.gpus_max for job in inside) <= max(parts, sum(job.gpus_min for job in inside))
        for job in seated:
            others = [other for other in seated if other is not job and other.gpus_max > other.gpus_min]
            if not others and job.admission is not None and job.gpus_max < job.admission.asked:
                assert any(self.use(cap, job) >= parts for cap, _, parts in self.model.caps(job))

    def use(self, cap, grown):
        """What those under ``cap`` may have, ``grown`` with its greatest size and the others with their smallest."""
        return self.model.use(cap)[1] - grown.gpus_min + grown.gpus_max

    @invariant()
    def the_counts_are_right(self):
        gates = self.lab.cluster.state.gates
        for array in gates.arrays.values():
            states = [job.state for job in array.tasks.values()]
            assert {state: count for state, count in array.states.items() if count} == {
                state: states.count(state) for state in set(states)
            }
        for user_quota in gates.user_quotas.values():
            mine = [job for job in self.model.jobs.values() if job.user == user_quota.name]
            assert user_quota.unfinished == sum(not job.state.finished for job in mine)

    def teardown(self):
        """Whoever starts next folds the same books, whatever the quotas are by then."""
        for quotas in (self.model.quotas, Quotas(), QUOTAS):
            again = Cluster(create_policy("fifo", OPTIONS), settings=Settings(quotas=quotas))
            for time, event in self.lab.journal:
                again.replay(event, time)
            assert again.state.problems == []
            for id, node in self.lab.cluster.state.nodes.items():
                folded = again.state.nodes[id]
                assert (folded.held, folded.promised) == (node.held, node.promised)


class GatesWithoutQuotas(Gates):
    """Until there are some."""

    quotas = Quotas()


TestGates = Gates.TestCase
TestGatesWithoutQuotas = GatesWithoutQuotas.TestCase
TestGates.settings = settings(max_examples=share_of(25), stateful_step_count=30, deadline=None, derandomize=True)
TestGatesWithoutQuotas.settings = settings(TestGates.settings, max_examples=10)
