"""Decides which waiting jobs are admitted to the queue. Policies know nothing of these gates.

A job passes the gates when its begin time (``--begin``) has come, all its dependencies are met, and the limits of its
array and of its user's quota leave a place for it. An admitted job is in the queue or has room. It keeps its place
while it is preempted, and gives it up when it ends, or when it is held or suspended and has left its GPUs. Jobs are
admitted in order of submission: a job that does not fit makes the jobs behind it in the same array, or quota, wait. A
job that is larger than the whole quota, which was lowered since, makes no other job wait.

A job counts with its smallest size, or with all that it has if it cannot give any back (``--suspend none``). Elastic
jobs may have what an array or a quota leaves over on top, in order of submission; that bounds the largest size that
policies see of them.

A job that no gate concerns has no admission record and costs nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from ebbtide_core.job.arrays import Array
from ebbtide_core.job.job import AdmissionQueue, AdmissionRecord, Cap, Job, UserQuota
from ebbtide_core.model.dependency import AfterKind, Dependency, is_met, is_ok
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.types import FINISHED, WHOLE, JobId, JobState, Task, gpus


@mypyc_attr(allow_interpreted_subclasses=True)
class Gates:
    """All gates.

    ``dependents`` are the jobs that wait for the job, or array, with that id to end in that way. ``doomed`` are the
    jobs that can never start, each with the reason.
    """

    def __init__(self, jobs: Mapping[JobId, Job], quotas: Quotas) -> None:
        self._jobs = jobs
        self.quotas = quotas
        self.limit_users = bool(quotas)
        self.arrays: dict[JobId, Array] = {}
        self.tasks = 0
        self.dependents: dict[JobId, dict[AfterKind, list[AdmissionRecord]]] = {}
        self.doomed: dict[JobId, str] = {}
        self.user_quotas: dict[str, UserQuota] = {}
        self._groups: dict[tuple[JobId, str], AdmissionQueue] = {}

    # --- coming and going ---

    def enter(self, job: Job, task: Task | None) -> None:
        """Give a new job its admission record, and check its dependencies."""
        if task is not None:
            self._add_task(job, task)
        group, most = self._group(job, task), job.gpus_max
        admission = job.admission = AdmissionRecord(job, group, job.spec.begin_at, most, most, most, job.gpus_min)
        user_quota = self._user_quota(job.user)
        if user_quota is not None:
            user_quota.unfinished += 1
        for dependency in job.spec.after:
            met, why = self._verdict(dependency)
            if met is None and dependency not in admission.after:
                self.dependents.setdefault(dependency.job, {}).setdefault(dependency.kind, []).append(admission)
            if not met:
                admission.after.add(dependency)
            if met is False:
                self._doom(admission, dependency, why)

    def _add_task(self, job: Job, task: Task) -> None:
        array = self.arrays.get(task.array)
        if array is None:
            array = self.arrays[task.array] = Array(task.array, job.user)
            array.max_concurrent, array.max_slots = task.max_concurrent, task.max_slots
        array.tasks[task.index] = job
        array.states[job.state] += 1
        self.tasks += 1

    def _group(self, job: Job, task: Task | None) -> AdmissionQueue:
        """Return the group that the job waits in; a quota does not count jobs without GPUs."""
        user_quota = self._user_quota(job.user) if job.gpus_min else None
        key = (task.array, "") if task is not None else (JobId(""), "" if user_quota is None else user_quota.name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = AdmissionQueue(key[0], Cap(), user_quota)
            if task is not None:
                _limit(group.cap, task.max_concurrent, task.max_slots)
        return group

    def _user_quota(self, user: str) -> UserQuota | None:
        if not self.limit_users or (quota := self.quotas.of(user)) == Quota():
            return None
        if user not in self.user_quotas:
            self.user_quotas[user] = UserQuota(user, Cap(max_parts=quota.gpus))
        return self.user_quotas[user]

    def regroup(self, user: str, jobs: Collection[Job]) -> None:
        """Count ``jobs``, all of a user whose quota changed, by the new quota; no job is admitted afterwards."""
        admissions = [job.admission for job in jobs if job.admission is not None]
        for admission in admissions:
            if admission.admitted:
                _withdraw(admission)
            admission.wants, admission.in_queue, admission.over = False, False, admission.job.end is not None
        self.user_quotas.pop(user, None)
        self._groups.pop((JobId(""), user), None)
        for admission in admissions:
            group, job = admission.group, admission.job
            group.queue, group.ready = [entry for entry in group.queue if entry[1].in_queue], None
            heapify(group.queue)
            if job.lineage.task is None:
                admission.group = self._group(job, None)
            else:
                group.user_quota = self._user_quota(user) if job.gpus_min else None
        if (user_quota := self._user_quota(user)) is not None:
            user_quota.unfinished = sum(not admission.over for admission in admissions)

    def next_id(self, submissions: int) -> JobId:
        """Return the id of the next job, or array, after ``submissions`` jobs."""
        return JobId(str(submissions - self.tasks + len(self.arrays) + 1))

    def count(self, job: Job, new: JobState) -> None:
        """Count that the job comes into the state ``new``; call this before its state changes."""
        if job.lineage.task is not None:
            states = self.arrays[job.lineage.task.array].states
            states[job.state] -= 1
            states[new] += 1

    def forget(self, job: Job) -> None:
        """Forget the job, which is over."""
        if job.lineage.task is not None:
            self.arrays[job.lineage.task.array].tasks.pop(job.lineage.task.index, None)

    def forget_array(self, id: JobId) -> None:
        """Forget the array if all of its tasks are forgotten; call this only where no new job needs an id."""
        if not self.arrays[id].tasks:
            del self.arrays[id], self._groups[id, ""]

    # --- dependencies ---

    def ended(self, job: Job) -> list[Job]:
        """Settle the dependencies on the job that ended, and on its array; return the jobs that depended on them."""
        changed = list[Job]()
        for id in (job.id,) if job.lineage.task is None else (job.id, job.lineage.task.array):
            kinds = self.dependents.get(id, {})
            for dependency in [Dependency(id, kind) for kind in kinds]:
                met, why = self._verdict(dependency)
                if met is not None:
                    admissions = [admission for admission in kinds.pop(dependency.kind) if not admission.over]
                    self._settle(admissions, dependency, met, why)
                    changed += [admission.job for admission in admissions]
            if id in self.dependents and not kinds:
                del self.dependents[id]
        return sorted(changed, key=lambda job: job.sequence)

    def _settle(self, admissions: list[AdmissionRecord], dependency: Dependency, met: bool, why: str) -> None:
        """Drop a dependency that is met from the records; doom their jobs if it can never be met."""
        for admission in admissions:
            if met:
                admission.after.discard(dependency)
            else:
                self._doom(admission, dependency, why)

    def _doom(self, admission: AdmissionRecord, dependency: Dependency, why: str) -> None:
        self.doomed[admission.job.id] = f"cancelled: it was to wait for {dependency}, but {why}"

    def _verdict(self, dependency: Dependency) -> tuple[bool | None, str]:
        """Return whether the dependency is met (None: that is open), and what became of the other job."""
        array = self.arrays.get(dependency.job)
        if array is not None:
            failed = array.not_ok
            why = f"{failed} of its tasks did not" if failed else "all of its tasks completed"
            return is_met(dependency.kind, array.unfinished, failed), why
        job = self._jobs.get(dependency.job)
        if job is None:
            return False, "that is forgotten"
        unfinished = job.state not in FINISHED
        not_ok = not unfinished and not is_ok(job.state)
        was = "was " if job.state is JobState.CANCELLED else ""
        return is_met(dependency.kind, unfinished, not_ok), f"that {was}{job.state.value.lower()}"

    # --- places ---

    def update(self, admission: AdmissionRecord, now: float) -> list[Job]:
        """Follow a job's state; return the other jobs that are admitted, or have another bound, because of that."""
        return self._admit_all(admission.group, admission) if self._follow(admission, now) else []

    def _follow(self, admission: AdmissionRecord, now: float) -> bool:
        """Follow a job's state; return whether that may change something for other jobs."""
        job = admission.job
        before = admission.admitted, admission.wants, admission.cost
        room = job.planned is not None or job.holding is not None
        stays = job.end is None and job.held_by is None
        if room or not stays:
            admission.why = ""
        if job.end is not None and not admission.over:
            self._leave(admission)
        changed = admission.resized or (admission.cost, admission.fixed) != (_cost(job), _is_fixed(job))
        if changed:
            self._recount(admission)
        if admission.admitted and not room and (not stays or any(cap.exceeded for cap in admission.caps)):
            _withdraw(admission)
        elif room and not admission.admitted:
            _admit(admission)
        admission.wants = not admission.admitted and stays and not admission.after and admission.begin_at <= now
        admission.why = held_back(job, _its_time) or admission.why
        if not changed and before == (admission.admitted, admission.wants, admission.cost):
            return False
        if admission.wants and not admission.in_queue:
            heappush(admission.group.queue, (job.sequence, admission))
            admission.in_queue = True
        return True

    def change(self, id: JobId, max_concurrent: int, max_slots: int, now: float) -> list[Job]:
        """Give an array, unless it is forgotten, other limits; return the jobs for which that changes something.

        If a limit is lower, admitted jobs without room lose their places, the last submitted first.
        """
        if (array := self.arrays.get(id)) is None:
            return []
        array.max_concurrent, array.max_slots = max_concurrent, max_slots
        admissions = [
            job.admission for _, job in sorted(array.tasks.items(), reverse=True) if job.admission is not None
        ]
        if not admissions:
            return []
        group, changed = admissions[0].group, list[Job]()
        _limit(group.cap, max_concurrent, max_slots)
        for admission in sorted((one for one in admissions if one.admitted), key=_sequence, reverse=True):
            if group.cap.exceeded:
                changed.append(admission.job)
                self._follow(admission, now)
        return list({job.id: job for job in changed + self._admit_all(group, None)}.values())

    def _admit_all(self, group: AdmissionQueue, cause: AdmissionRecord | None) -> list[Job]:
        """Admit the jobs that fit; return those, and those with another bound, except the job of ``cause``."""
        seated = list(_admitted(group))
        changed = seated + _bounded({group, *(admission.group for admission in seated)}, group.user_quota)
        return [admission.job for admission in dict.fromkeys(changed) if admission is not cause]

    def _recount(self, admission: AdmissionRecord) -> None:
        admission.resized = False
        if admission.admitted:
            _withdraw(admission)
            admission.cost, admission.fixed = _cost(admission.job), _is_fixed(admission.job)
            _admit(admission)
        admission.cost, admission.fixed = _cost(admission.job), _is_fixed(admission.job)

    def _leave(self, admission: AdmissionRecord) -> None:
        admission.over = True
        self.doomed.pop(admission.job.id, None)
        user_quota = self._user_quota(admission.job.user)
        if user_quota is not None:
            user_quota.unfinished -= 1


def _limit(cap: Cap, max_concurrent: int, max_slots: int) -> None:
    """Set the limits of an array; 0 means no limit."""
    cap.max_jobs, cap.max_parts = max_concurrent or None, max_slots or None


def _cost(job: Job) -> int:
    """Return for how many parts of GPUs ``job`` counts."""
    return max(job.gpus_min, job.attempts[-1].allocation.share) if _is_fixed(job) else job.gpus_min


def _is_fixed(job: Job) -> bool:
    """Return whether ``job`` keeps the size that it has, because it runs and cannot be suspended."""
    return job.running and not job.preemptible


def _sequence(admission: AdmissionRecord) -> int:
    return admission.job.sequence


def _admit(admission: AdmissionRecord) -> None:
    admission.admitted, admission.wants = True, False
    for cap in admission.caps:
        cap.take(admission)


def _withdraw(admission: AdmissionRecord) -> None:
    admission.admitted, admission.bound = False, admission.asked
    for cap in admission.caps:
        cap.give_back(admission)


def _admitted(group: AdmissionQueue) -> Iterator[AdmissionRecord]:
    """Admit the jobs of ``group`` and of its user's other groups in order of submission while they fit; yield them."""
    user_quota = group.user_quota
    if user_quota is None:
        while (admission := _ready(group)) is not None:
            _admit(admission)
            yield admission
        return
    _stand(user_quota, group)
    while user_quota.heads:
        first = user_quota.groups[user_quota.heads[0]]
        admission = _ready(first)
        if admission is None or first.ready != user_quota.heads[0] or admission.job.sequence != first.ready:
            del user_quota.groups[heappop(user_quota.heads)]
            _stand(user_quota, first)
        elif user_quota.cap.fits(admission.cost):
            _admit(admission)
            yield admission
        else:
            return


def _ready(group: AdmissionQueue) -> AdmissionRecord | None:
    """Return the first job that wants a place, if its group has one left, else None."""
    admission = group.head()
    return admission if admission is not None and group.cap.fits(admission.cost) else None


def _stand(user_quota: UserQuota, group: AdmissionQueue) -> None:
    """Put the first job of the group into the heap of its user's quota."""
    admission = _ready(group)
    group.ready = None if admission is None else admission.job.sequence
    if group.ready is not None and group.ready not in user_quota.groups:
        user_quota.groups[group.ready] = group
        heappush(user_quota.heads, group.ready)


def _bounded(groups: Iterable[AdmissionQueue], user_quota: UserQuota | None) -> list[AdmissionRecord]:
    """Share out what the groups and the user's quota leave over; return the records with another bound by that."""
    shares: dict[AdmissionRecord, int] = {}
    for group in groups:
        if group.cap.elastic:
            for admission, most in group.cap.shared_out(lambda admission: admission.asked):
                admission.in_array = shares[admission] = most
    if user_quota is not None and user_quota.cap.elastic:
        shares |= dict(user_quota.cap.shared_out(lambda admission: admission.in_array))
    changed = []
    for admission, most in shares.items():
        if (bound := _size(most, admission.asked)) != admission.bound:
            admission.bound = bound
            changed.append(admission)
    return changed


def _size(most: int, asked: int) -> int:
    """Return the largest size up to ``most`` and ``asked``, in parts: whole GPUs, or 1/n of one."""
    if most >= asked:
        return asked
    return most - most % WHOLE if most >= WHOLE else WHOLE // -(-WHOLE // most)


def _its_time(_: float) -> str:
    return "the time of --begin"


def held_back(job: Job, written: Callable[[float], str]) -> str:
    """Return which gate holds the job back, in words; empty if none does. ``written`` formats a Unix time."""
    admission = job.admission
    if admission is None or admission.admitted or job.held_by is not None or job.state in FINISHED:
        return ""
    if admission.after:
        first, *others = sorted(str(one) for one in admission.after)
        return f"waits for {first}" + (f", and {len(others)} more" if others else "")
    if not admission.wants:
        return f"not before {written(admission.begin_at)}"
    cap, array = admission.group.cap, admission.group.array
    if array and not cap.fits(admission.cost):
        if cap.max_jobs is not None and cap.jobs >= cap.max_jobs:
            one = cap.max_jobs == 1
            return f"at most {cap.max_jobs} job{'s' * (not one)} of array {array} run{'s' * one} at once"
        assert cap.max_parts is not None
        return f"jobs of array {array} have at most {gpus(cap.max_parts)} GPUs at once"
    user_quota = admission.group.user_quota
    if user_quota is None or user_quota.cap.max_parts is None:
        return ""
    most = user_quota.cap.max_parts
    if admission.cost > most:
        return f"needs {gpus(admission.cost)}, more than the {gpus(most)} GPUs of the quota of {user_quota.name}"
    return f"{user_quota.name} has {gpus(user_quota.cap.parts)} of {gpus(most)} GPUs of the quota"
