"""Who wanted how many GPUs of the fair-share pool when, who had them, and what would have been fair.

All of it comes from the event log, and nothing from the scheduler's code. The day is cut at every event. Between two
cuts

- the capacity C is the number of GPUs of the pool that are healthy, free of foreign processes, and on a node whose
  agent and master are there;
- a user's demand d is the sum over their jobs that stand in the queue or have room there: of the GPUs that each asks
  for at most. One that is held, suspended, before its time, behind its array's limit or in the delay after a failure
  asks for what it still has; jobs on GPUs that are not counted in C are left out, as is what these jobs have;
- a user's fair share is what docs/explanation/policies/fair-share.md says: GPUs in proportion to demand, none above it.
  That is the max-min fair division of C with the demands as weights and as caps: raise all d * x together, and let
  everybody stop at d;
- a user's due is what of that share their jobs can use: as the page says, one that is larger than the share waits while
  the others use theirs. So it is at most the sum of what the user has and of what those of the waiting jobs ask for
  that need no more than the share, or than one GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.e2e.day.evidence import Entry, Evidence, Facts

WHOLE = 720720
FIRST_DELAY_S = 1.0
"""After a failure; each further one is twice as long."""


@dataclass
class Wanting:
    """One job, as far as the log has told."""

    id: str
    user: str
    least: float
    most: float
    after: list[str]
    array: str
    index: int
    limit: int
    paused: bool
    allocation: list[tuple[str, str, float]] = field(default_factory=list)
    not_before: float = 0.0
    failures: int = 0
    asked_to_stop: bool = False
    over: bool = False

    def take(self, entry: Entry) -> None:
        """Follow one event."""
        match entry.kind:
            case "HoldRequested" | "SuspendRequested" | "JobHeld" | "CancelRequested":
                self.paused = True
            case "ReleaseRequested" | "ResumeRequested":
                self.paused, self.not_before = False, 0.0
            case "ResizeRequested":
                self.most = entry.fact["gpus_max"] / WHOLE
            case "AttemptPlaced":
                self.allocation = list(pieces(entry.fact["allocation"]))
                self.asked_to_stop = False
            case "StopRequested":
                self.asked_to_stop = True
            case "AttemptExited":
                self._ended(entry)
            case "AttemptFreed":
                self.allocation = []

    def _ended(self, entry: Entry) -> None:
        exit = entry.fact["exit"]
        if not self.asked_to_stop and (exit["signal"] or exit["exit_code"]) and not exit["lost_gpu"]:
            self.not_before = entry.at + FIRST_DELAY_S * 2**self.failures
            self.failures += 1
        if entry.fact["freed"]:
            self.allocation = []


@dataclass
class Gpus:
    """The GPUs of the pool: on which node, which of them are unusable, and which nodes are away."""

    nodes: dict[str, set[str]] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)

    def take(self, entry: Entry, pool: str) -> None:
        """Follow one event."""
        match entry.kind:
            case "NodeRegistered" if entry.fact["pool"] == pool:
                self.nodes[entry.node] = {gpu["gpu"] for gpu in entry.fact["gpus"]}
                self.away.discard(entry.node)
            case "GpuHealthChanged":
                self._mark(entry.fact["gpu"], not entry.fact["healthy"])
            case "ForeignUseChanged":
                self._mark(entry.fact["gpu"], bool(entry.fact["processes"]))
            case "NodeLost":
                self.away.add(entry.node)
            case "MasterStarted":
                self.away |= set(self.nodes)

    def _mark(self, gpu: str, unusable: bool) -> None:
        (self.unusable.add if unusable else self.unusable.discard)(gpu)

    def counted(self) -> set[str]:
        """Those that can be given to somebody now."""
        here = [gpus for node, gpus in self.nodes.items() if node not in self.away]
        return set().union(*here) - self.unusable


@dataclass(frozen=True)
class Cut:
    """From ``start`` to ``end`` nothing changed."""

    start: float
    end: float
    capacity: int
    demand: dict[str, float]
    had: dict[str, float]
    waiting: dict[str, list[tuple[float, float]]]

    def due(self) -> dict[str, float]:
        """What of their fair shares the users' jobs can use."""
        due = {}
        for user, share in fair(self.capacity, self.demand, self.demand).items():
            fit = sum(more for least, more in self.waiting[user] if least <= max(share, 1.0))
            due[user] = min(share, self.had[user] + fit)
        return due

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.start


def fair(capacity: float, demand: Mapping[str, float], weight: Mapping[str, float]) -> dict[str, float]:
    """The max-min fair division: shares in proportion to weight, nobody above their demand."""
    shares = dict.fromkeys(demand, 0.0)
    open_, left = {user for user in demand if demand[user] > 0}, capacity
    while open_:
        level = left / sum(weight[user] for user in open_)
        full = {user for user in open_ if demand[user] <= level * weight[user]}
        for user in full or open_:
            shares[user] = demand[user] if full else level * weight[user]
        if not full:
            break
        left -= sum(demand[user] for user in full)
        open_ -= full
    return shares


def cuts(day: Evidence, pool: str) -> Iterator[Cut]:
    """The whole day, cut at every event."""
    jobs: dict[str, Wanting] = {}
    gpus = Gpus()
    todo = sorted(_moments(day), key=lambda moment: moment[0])
    for (at, what), (following, _) in pairwise(todo):
        match what:
            case Entry(kind="JobSubmitted"):
                _add(jobs, what, pool)
            case Entry():
                gpus.take(what, pool)
                if what.job in jobs:
                    jobs[what.job].take(what)
            case ("away", str(node)):
                gpus.away |= set(gpus.nodes) if node == "master" else {node}
            case ("over", str(id)) if id in jobs:
                jobs[id].over = True
        late = [job.not_before for job in jobs.values() if at < job.not_before < following]
        for start, end in pairwise([at, *sorted(late), following]):
            if end > start:
                yield Cut(start, end, len(gpus.counted()), *_wanted(day, jobs, gpus.counted(), start))


def _moments(day: Evidence) -> Iterator[tuple[float, object]]:
    for entry in day.log:
        yield entry.at, entry
    for at, node in day.outages:
        yield at, ("away", node)
    for id, job in day.jobs.items():
        if job["end_time"]:
            yield job["end_time"], ("over", id)


def _add(jobs: dict[str, Wanting], entry: Entry, pool: str) -> None:
    spec, task = entry.fact["spec"], entry.fact["task"] or {}
    if (spec["pool"] or "default") != pool or not spec["gpus_max"]:
        return
    after = [dependency["job"] for dependency in spec["after"]]
    array, index, limit = task.get("array", ""), task.get("index", 0), task.get("max_concurrent", 0)
    least, most = spec["gpus_min"] / WHOLE, spec["gpus_max"] / WHOLE
    jobs[entry.job] = Wanting(
        entry.job, entry.fact["user"], least, most, after, array, index, limit, entry.fact["hold"]
    )


def _wanted(
    day: Evidence, jobs: dict[str, Wanting], counted: set[str], now: float
) -> tuple[dict[str, float], dict[str, float], dict[str, list[tuple[float, float]]]]:
    """What each user wants now, and has, and of each job that would take more: what it needs at least, and how much."""
    demand: dict[str, float] = {}
    had: dict[str, float] = {}
    waiting: dict[str, list[tuple[float, float]]] = {}
    seats: dict[str, int] = {}
    for job in jobs.values():  # in order of submission, the tasks of an array by index
        if job.over and not job.allocation:
            continue
        has = sum(share for _, gpu, share in job.allocation if gpu in counted)
        if job.allocation and not has:
            continue
        gated = bool(job.limit) and seats.get(job.array, 0) >= job.limit
        if not job.paused and not job.over:
            seats[job.array] = seats.get(job.array, 0) + 1
        waits = gated or job.paused or job.over or now < job.not_before or not _may_begin(day, job, now)
        demand[job.user] = demand.get(job.user, 0.0) + (has if waits else job.most)
        had[job.user] = had.get(job.user, 0.0) + has
        more = [] if waits or has >= job.most else [(0.0 if has else job.least, job.most - has)]
        waiting.setdefault(job.user, []).extend(more)
    return demand, had, waiting


def _may_begin(day: Evidence, job: Wanting, now: float) -> bool:
    """Whether all that it was to wait for has ended."""
    return all(
        (other["end_time"] or now + 1.0) <= now
        for wanted in job.after
        for id, other in day.jobs.items()
        if id == wanted or other["array"] == wanted
    )


def pieces(allocation: Facts) -> Iterator[tuple[str, str, float]]:
    """Node, GPU and share of it in whole GPUs, of all that an attempt has."""
    for node in allocation["nodes"]:
        for gpu in node["gpus"]:
            yield node["node"], gpu["gpu"], gpu["share"] / WHOLE
