"""Groups the processes of each look into jobs. Pure."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ebbtide_agent.observing.observation import Key, NodeObservation, ObservedProcess

TOGETHER_S = 10.0
"""Seconds within which processes of one parent must start to count as ranks of one job."""


@dataclass(slots=True)
class ObservedRun:
    """A run that counts as one job: a process on GPUs with the processes that belong to it."""

    id: int
    user: str
    command: str
    first_s: float  # Unix seconds, of the first look that showed it
    last_s: float
    members: set[Key] = field(default_factory=set)  # processes of the last look
    ancestors: set[Key] = field(default_factory=set)  # of any member
    parents: dict[Key, float] = field(default_factory=dict)  # of members: start of the first child seen, s since boot
    peak_bytes: dict[str, int] = field(default_factory=dict)  # by GPU: most bytes that all members held at one look
    gpus: set[str] = field(default_factory=set)
    utilisation_sum: float = 0.0
    utilisation_looks: int = 0

    @property
    def seconds(self) -> float:
        """Seconds between the first and the last look that showed the run."""
        return self.last_s - self.first_s

    @property
    def gpu_mem_bytes(self) -> int | None:
        """The most bytes that the run held on any one GPU; None if the driver never reported them."""
        return max(self.peak_bytes.values(), default=None)

    @property
    def utilisation(self) -> float | None:
        """Mean utilisation of the run's GPUs while it was on them, other processes' work included."""
        return self.utilisation_sum / self.utilisation_looks if self.utilisation_looks else None

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON for the state file."""
        pairs = [[*key, started] for key, started in self.parents.items()]
        sets = {name: sorted(getattr(self, name)) for name in ("members", "ancestors", "gpus")}
        return asdict(self) | sets | {"parents": pairs}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read a run. Raises KeyError, TypeError or ValueError if the content is not one."""
        keys = {name: {(int(pid), int(start)) for pid, start in content[name]} for name in ("members", "ancestors")}
        parents = {(int(pid), int(start)): float(at) for pid, start, at in content["parents"]}
        return cls(**(content | keys | {"parents": parents, "gpus": set(content["gpus"])}))


@dataclass(slots=True)
class Tracker:
    """Keeps the runs that go on. `next_id` is the next run's number."""

    runs: list[ObservedRun] = field(default_factory=list)
    next_id: int = 1

    def take(self, look: NodeObservation) -> list[ObservedRun]:
        """Add a look, and return the runs that it shows to be over."""
        present: dict[int, list[ObservedProcess]] = {}
        for process in look.processes:
            run = self._run_of(process) or self._begin(process, look.at)
            _join(run, process)
            present.setdefault(run.id, []).append(process)
        for run in self.runs:
            if run.id in present:
                _note(run, look, present[run.id])
        # A GPU whose processes could not be read does not show that a process has left it.
        over = [run for run in self.runs if run.id not in present and not run.gpus & look.blind]
        self.runs = [run for run in self.runs if run not in over]
        return over

    def _run_of(self, process: ObservedProcess) -> ObservedRun | None:
        return next((run for run in self.runs if any(_reasons(run, process))), None)

    def _begin(self, process: ObservedProcess, at: float) -> ObservedRun:
        run = ObservedRun(self.next_id, process.user, process.command, at, at)
        self.next_id += 1
        self.runs.append(run)
        return run


def _reasons(run: ObservedRun, process: ObservedProcess) -> Iterator[bool]:
    """Yield whether a process is a member of a run, below or above a member, or was started beside one."""
    yield process.key in run.members
    if process.shown and process.user == run.user:
        yield not run.members.isdisjoint(process.ancestors)
        yield process.key in run.ancestors
        parent = process.ancestors[0] if process.ancestors else None
        beside = run.parents.get(parent) if parent is not None else None
        yield beside is not None and abs(beside - process.started_s) <= TOGETHER_S


def _join(run: ObservedRun, process: ObservedProcess) -> None:
    run.gpus |= process.gpus.keys()
    run.members.add(process.key)
    run.ancestors.update(process.ancestors)
    if process.ancestors:
        run.parents.setdefault(process.ancestors[0], process.started_s)


def _note(run: ObservedRun, look: NodeObservation, present: list[ObservedProcess]) -> None:
    """Update the run with its present processes, their GPU memory, and its GPUs' utilisation."""
    run.last_s = look.at
    if not run.gpus & look.blind:  # drop processes that have left, so that a run that forks for a week stays small
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
