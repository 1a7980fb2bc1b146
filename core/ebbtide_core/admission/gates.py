"""Who may stand in the queue: a job does so only if no gate holds it back. Policies know nothing of gates.

A job passes the gates when it is not before its time (``--begin``), all that it depends on has ended as it should, and
there is a seat for it. Its array and its user's quota have only so many seats. Whoever has one is in the queue or has
room; it keeps the seat while it is preempted, and gives it up when it ends, or is held or suspended and has left its
GPUs. Seats are given in order of submission: who does not fit has those of the same array, or quota, wait behind it.

A job counts with its smallest size. What an array or a quota leaves over, elastic jobs may have on top, those submitted
first before the others: that bounds the greatest size that policies see of them.

A job that none of this concerns has no ticket and costs nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from ebbtide_core.job.arrays import Array
from ebbtide_core.job.job import Cap, Group, Job, Person, Ticket
from ebbtide_core.model.dependency import AfterKind, Dependency, is_met, is_ok
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.types import FINISHED, WHOLE, JobId, JobState, Task, gpus


class Gates:
    """All gates. ``dependents`` wait for the job, or array, of that id to end so; ``doomed`` never start, and why."""

    def __init__(self, jobs: Mapping[JobId, Job], quotas: Quotas) -> None:
        self._jobs = jobs
        self.quotas = quotas
        self.limit_users = bool(quotas)
        self.arrays: dict[JobId, Array] = {}
        self.tasks = 0
        self.dependents: dict[JobId, dict[AfterKind, list[Ticket]]] = {}
        self.doomed: dict[JobId, str] = {}
        self.persons: dict[str, Person] = {}
        self._groups: dict[tuple[JobId, str], Group] = {}

    # --- coming and going ---

    def enter(self, job: Job, task: Task | None) -> None:
        """Give a new job its ticket, and look at what it depends on."""
        if task is not None:
            self._add_task(job, task)
        group, most = self._group(job, task), job.gpus_max
        ticket = job.ticket = Ticket(job, group, job.spec.begin_at, most, most, most, job.gpus_min)
        person = self._person(job.user)
        if person is not None:
            person.unfinished += 1
        for dependency in job.spec.after:
            met, why = self._verdict(dependency)
            if met is None and dependency not in ticket.after:
                self.dependents.setdefault(dependency.job, {}).setdefault(dependency.kind, []).append(ticket)
            if not met:
                ticket.after.add(dependency)
            if met is False:
                self._doom(ticket, dependency, why)

    def _add_task(self, job: Job, task: Task) -> None:
        array = self.arrays.get(task.array)
        if array is None:
            array = self.arrays[task.array] = Array(task.array, job.user)
            array.max_concurrent, array.max_slots = task.max_concurrent, task.max_slots
        array.tasks[task.index] = job
        array.states[job.state] += 1
        self.tasks += 1

    def _group(self, job: Job, task: Task | None) -> Group:
        """The group that it waits in; without GPUs, no quota counts."""
        person = self._person(job.user) if job.gpus_min else None
        key = (task.array, "") if task is not None else (JobId(""), "" if person is None else person.name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key[0], Cap(), person)
            if task is not None:
                _limit(group.cap, task.max_concurrent, task.max_slots)
        return group

    def _person(self, user: str) -> Person | None:
        if not self.limit_users or (quota := self.quotas.of(user)) == Quota():
            return None
        if user not in self.persons:
            self.persons[user] = Person(user, Cap(max_parts=quota.gpus))
        return self.persons[user]

    def regroup(self, user: str, jobs: Collection[Job]) -> None:
        """The user has another quota: count ``jobs``, which may have seats, by it. None has one then."""
        tickets = [job.ticket for job in jobs if job.ticket is not None]
        for ticket in tickets:
            if ticket.seated:
                _unseat(ticket)
            ticket.wants, ticket.lined, ticket.over = False, False, ticket.job.ending is not None
        self.persons.pop(user, None)
        self._groups.pop((JobId(""), user), None)
        for ticket in tickets:
            group, job = ticket.group, ticket.job
            group.line, group.ready = [entry for entry in group.line if entry[1].lined], None
            heapify(group.line)
            if job.task is None:
                ticket.group = self._group(job, None)
            else:
                group.person = self._person(user) if job.gpus_min else None
        if (person := self._person(user)) is not None:
            person.unfinished = sum(not ticket.over for ticket in tickets)

    def next_id(self, submissions: int) -> JobId:
        """The id of the next job, or array, after so many jobs."""
        return JobId(str(submissions - self.tasks + len(self.arrays) + 1))

    def count(self, job: Job, new: JobState) -> None:
        """The job comes into another state; call before it is."""
        if job.task is not None:
            states = self.arrays[job.task.array].states
            states[job.state] -= 1
            states[new] += 1

    def forget(self, job: Job) -> None:
        """The job, which is over, is forgotten."""
        if job.task is not None:
            self.arrays[job.task.array].tasks.pop(job.task.index, None)

    # --- what others did ---

    def ended(self, job: Job) -> list[Job]:
        """Tell those who depend on the job that it ended, or its array with it; the jobs for whom that changes much."""
        changed = list[Job]()
        for id in (job.id,) if job.task is None else (job.id, job.task.array):
            kinds = self.dependents.get(id, {})
            for dependency in [Dependency(id, kind) for kind in kinds]:
                met, why = self._verdict(dependency)
                if met is not None:
                    tickets = [ticket for ticket in kinds.pop(dependency.kind) if not ticket.over]
                    self._settle(tickets, dependency, met, why)
                    changed += [ticket.job for ticket in tickets]
            if id in self.dependents and not kinds:
                del self.dependents[id]
        return sorted(changed, key=lambda job: job.sequence)

    def _settle(self, tickets: list[Ticket], dependency: Dependency, met: bool, why: str) -> None:
        """Of these jobs, a dependency that is met is none any more. If it never can be, they are doomed."""
        for ticket in tickets:
            if met:
                ticket.after.discard(dependency)
            else:
                self._doom(ticket, dependency, why)

    def _doom(self, ticket: Ticket, dependency: Dependency, why: str) -> None:
        """The job can never start."""
        self.doomed[ticket.job.id] = f"cancelled: it was to wait for {dependency}, but {why}"

    def _verdict(self, dependency: Dependency) -> tuple[bool | None, str]:
        """Whether it is met (None: that is open), and what became of the other job."""
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

    # --- seats ---

    def update(self, ticket: Ticket, now: float) -> list[Job]:
        """Follow what became of a job; returns the others that came into the queue, or have another bound, by that."""
        return self._give_seats(ticket.group, ticket) if self._follow(ticket, now) else []

    def _follow(self, ticket: Ticket, now: float) -> bool:
        """Follow what became of a job; whether that may change something for others."""
        job = ticket.job
        before = ticket.seated, ticket.wants, ticket.cost
        room = job.planned is not None or job.holding is not None
        stays = job.ending is None and job.held_by is None
        if room or not stays:
            ticket.why = ""
        if job.ending is not None and not ticket.over:
            self._leave(ticket)
        changed = ticket.resized or ticket.cost != job.gpus_min
        if changed:
            self._recount(ticket)
        if ticket.seated and not room and (not stays or any(cap.exceeded for cap in ticket.caps)):
            _unseat(ticket)
        elif room and not ticket.seated:
            _seat(ticket)
        ticket.wants = not ticket.seated and stays and not ticket.after and ticket.begin_at <= now
        ticket.why = held_back(job, _its_time) or ticket.why
        if not changed and before == (ticket.seated, ticket.wants, ticket.cost):
            return False
        if ticket.wants and not ticket.lined:
            heappush(ticket.group.line, (job.sequence, ticket))
            ticket.lined = True
        return True

    def change(self, id: JobId, max_concurrent: int, max_slots: int, now: float) -> list[Job]:
        """Give an array other limits; returns the jobs for which that changes something.

        If they are lower, those who have a seat but no room leave it, the last first.
        """
        array = self.arrays[id]
        array.max_concurrent, array.max_slots = max_concurrent, max_slots
        tickets = [job.ticket for _, job in sorted(array.tasks.items(), reverse=True) if job.ticket is not None]
        if not tickets:
            return []
        group, changed = tickets[0].group, list[Job]()
        _limit(group.cap, max_concurrent, max_slots)
        for ticket in sorted((one for one in tickets if one.seated), key=_sequence, reverse=True):
            if group.cap.exceeded:
                changed.append(ticket.job)
                self._follow(ticket, now)
        return list({job.id: job for job in changed + self._give_seats(group, None)}.values())

    def _give_seats(self, group: Group, cause: Ticket | None) -> list[Job]:
        """Give what seats there are; the jobs that got one, or have another bound, other than that of ``cause``."""
        seated = list(_admitted(group))
        changed = seated + _bounded({group, *(ticket.group for ticket in seated)}, group.person)
        return [ticket.job for ticket in dict.fromkeys(changed) if ticket is not cause]

    def _recount(self, ticket: Ticket) -> None:
        ticket.resized = False
        if ticket.seated:
            _unseat(ticket)
            ticket.cost = ticket.job.gpus_min
            _seat(ticket)
        ticket.cost = ticket.job.gpus_min

    def _leave(self, ticket: Ticket) -> None:
        """Its job is over."""
        ticket.over = True
        self.doomed.pop(ticket.job.id, None)
        person = self._person(ticket.job.user)
        if person is not None:
            person.unfinished -= 1


def _limit(cap: Cap, max_concurrent: int, max_slots: int) -> None:
    """Set the limits of an array; 0 is none."""
    cap.max_jobs, cap.max_parts = max_concurrent or None, max_slots or None


def _sequence(ticket: Ticket) -> int:
    return ticket.job.sequence


def _seat(ticket: Ticket) -> None:
    ticket.seated, ticket.wants = True, False
    for cap in ticket.caps:
        cap.take(ticket)


def _unseat(ticket: Ticket) -> None:
    ticket.seated, ticket.bound = False, ticket.asked
    for cap in ticket.caps:
        cap.give_back(ticket)


def _admitted(group: Group) -> Iterator[Ticket]:
    """Give seats to those who want them in order of submission, as long as there are any."""
    person = group.person
    if person is None:
        while (ticket := _ready(group)) is not None:
            _seat(ticket)
            yield ticket
        return
    _stand(person, group)
    while person.heads:
        first = person.groups[person.heads[0]]
        ticket = _ready(first)
        if ticket is None or first.ready != person.heads[0] or ticket.job.sequence != first.ready:
            del person.groups[heappop(person.heads)]
            _stand(person, first)
        elif person.cap.fits(ticket.cost):
            _seat(ticket)
            yield ticket
        else:
            return


def _ready(group: Group) -> Ticket | None:
    """The first that wants a seat, if its group has one."""
    ticket = group.head()
    return ticket if ticket is not None and group.cap.fits(ticket.cost) else None


def _stand(person: Person, group: Group) -> None:
    """Have the head of the group stand in the line of its user's quota."""
    ticket = _ready(group)
    group.ready = None if ticket is None else ticket.job.sequence
    if group.ready is not None and group.ready not in person.groups:
        person.groups[group.ready] = group
        heappush(person.heads, group.ready)


def _bounded(groups: Iterable[Group], person: Person | None) -> list[Ticket]:
    """Share out what is left over in these groups, and of their user's quota; whoever has another bound by that."""
    shares: dict[Ticket, int] = {}
    for group in groups:
        if group.cap.elastic:
            for ticket, most in group.cap.shared_out(lambda ticket: ticket.asked):
                ticket.in_array = shares[ticket] = most
    if person is not None and person.cap.elastic:
        shares |= dict(person.cap.shared_out(lambda ticket: ticket.in_array))
    changed = []
    for ticket, most in shares.items():
        if (bound := _size(most, ticket.asked)) != ticket.bound:
            ticket.bound = bound
            changed.append(ticket)
    return changed


def _size(most: int, asked: int) -> int:
    """The greatest size that is no more than ``most``: whole GPUs, or 1/n of one."""
    if most >= asked:
        return asked
    return most - most % WHOLE if most >= WHOLE else WHOLE // -(-WHOLE // most)


def _its_time(_: float) -> str:
    return "the time of --begin"


def held_back(job: Job, written: Callable[[float], str]) -> str:
    """Which gate holds the job back, in words; empty if none does. ``written`` writes Unix seconds."""
    ticket = job.ticket
    if ticket is None or ticket.seated or job.held_by is not None or job.state in FINISHED:
        return ""
    if ticket.after:
        first, *others = sorted(str(one) for one in ticket.after)
        return f"waits for {first}" + (f", and {len(others)} more" if others else "")
    if not ticket.wants:
        return f"not before {written(ticket.begin_at)}"
    cap, array = ticket.group.cap, ticket.group.array
    if array and not cap.fits(ticket.cost):
        if cap.max_jobs is not None and cap.jobs >= cap.max_jobs:
            return f"{cap.jobs} job{'s' * (cap.jobs > 1)} of array {array} run{'s' * (cap.jobs == 1)}: its limit"
        assert cap.max_parts is not None
        return f"array {array} has {gpus(cap.parts)} of {gpus(cap.max_parts)} GPUs: its limit"
    person = ticket.group.person
    if person is None or person.cap.max_parts is None:
        return ""
    return f"{person.name} has {gpus(person.cap.parts)} of {gpus(person.cap.max_parts)} GPUs of the quota"
