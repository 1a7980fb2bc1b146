"""Makes jobs of what was seen, look by look. Nothing here reads the world."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ebbtide_agent.observing.sight import Key, NodeLook, Seen

TOGETHER_S = 10.0
"""Processes of one parent that start within so many seconds of each other are the ranks of one job."""


@dataclass(slots=True)
class ObservedRun:
    """What is taken for one job: a process on GPUs, with those that belong to it."""

    id: int
    user: str
    command: str
    first_s: float  # Unix seconds, of the first look that showed it
    last_s: float
    members: set[Key] = field(default_factory=set)  # of the last look
    ancestors: set[Key] = field(default_factory=set)  # of any of them
    parents: dict[Key, float] = field(default_factory=dict)  # of a member: when that one had started, since boot
    peak_bytes: dict[str, int] = field(default_factory=dict)  # by UUID: the most that all members held at one look
    gpus: set[str] = field(default_factory=set)
    utilisation_sum: float = 0.0
    utilisation_looks: int = 0

    @property
    def seconds(self) -> float:
        """How long it was seen."""
        return self.last_s - self.first_s

    @property
    def gpu_mem_bytes(self) -> int | None:
        """The most that it held of any one GPU; None if the driver never told."""
        return max(self.peak_bytes.values(), default=None)

    @property
    def utilisation(self) -> float | None:
        """Mean of its GPUs while it was on them, others' work included."""
        return self.utilisation_sum / self.utilisation_looks if self.utilisation_looks else None

    def to_json(self) -> dict[str, Any]:
        """For the file that the next start reads."""
        pairs = [[*key, started] for key, started in self.parents.items()]
        sets = {name: sorted(getattr(self, name)) for name in ("members", "ancestors", "gpus")}
        return asdict(self) | sets | {"parents": pairs}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError if the content is no run."""
        keys = {name: {(int(pid), int(start)) for pid, start in content[name]} for name in ("members", "ancestors")}
        parents = {(int(pid), int(start)): float(at) for pid, start, at in content["parents"]}
        return cls(**(content | keys | {"parents": parents, "gpus": set(content["gpus"])}))


@dataclass(slots=True)
class Tracker:
    """The runs that go on. `next_id` numbers the next one."""

    runs: list[ObservedRun] = field(default_factory=list)
    next_id: int = 1

    def take(self, look: NodeLook) -> list[ObservedRun]:
        """Take in what was seen; the runs that are over because of it."""
        present: dict[int, list[Seen]] = {}
        for process in look.processes:
            run = self._run_of(process) or self._begin(process, look.at)
            _join(run, process)
            present.setdefault(run.id, []).append(process)
        for run in self.runs:
            if run.id in present:
                _note(run, look, present[run.id])
        # Of a GPU that does not tell who is on it nobody is known to have left.
        over = [run for run in self.runs if run.id not in present and not run.gpus & look.blind]
        self.runs = [run for run in self.runs if run not in over]
        return over

    def _run_of(self, process: Seen) -> ObservedRun | None:
        return next((run for run in self.runs if any(_reasons(run, process))), None)

    def _begin(self, process: Seen, at: float) -> ObservedRun:
        run = ObservedRun(self.next_id, process.user, process.command, at, at)
        self.next_id += 1
        self.runs.append(run)
        return run


def _reasons(run: ObservedRun, process: Seen) -> Iterator[bool]:
    """Why a process may belong to a run: it is in it, below or above one that is, or was started beside one."""
    yield process.key in run.members
    if process.shown and process.user == run.user:
        yield not run.members.isdisjoint(process.ancestors)
        yield process.key in run.ancestors
        parent = process.ancestors[0] if process.ancestors else None
        beside = run.parents.get(parent) if parent is not None else None
        yield beside is not None and abs(beside - process.started_s) <= TOGETHER_S


def _join(run: ObservedRun, process: Seen) -> None:
    run.gpus |= process.gpus.keys()
    run.members.add(process.key)
    run.ancestors.update(process.ancestors)
    if process.ancestors:
        run.parents.setdefault(process.ancestors[0], process.started_s)


def _note(run: ObservedRun, look: NodeLook, present: list[Seen]) -> None:
    """What these, all of its processes that are there now, hold and do."""
    run.last_s = look.at
    if not run.gpus & look.blind:  # who has left does not come back: a run that forks for a week stays small
        run.members = {process.key for process in present}
        run.ancestors = {key for process in present for key in process.ancestors}
        run.parents = {key: started for key, started in run.parents.items() if key in run.ancestors}
    held: dict[str, int] = {}
    for uuid, count in (item for process in present for item in process.gpus.items() if item[1] is not None):
        held[uuid] = held.get(uuid, 0) + (count or 0)
    for uuid, count in held.items():
        run.peak_bytes[uuid] = max(count, run.peak_bytes.get(uuid, 0))
    known = [value for uuid in run.gpus if (value := look.utilisation.get(uuid)) is not None]
    if known:
        run.utilisation_sum += sum(known) / len(known)
        run.utilisation_looks += 1
