"""The cluster as everybody may see it, kept from what the master tells. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_web.board.shared_page import encoded

FEW_GPUS: Final = 64
"""Up to so many GPUs have a card each, and a lane on the timeline; more are drawn as cells of a map, and by pool."""
WAITING: Final = ("PENDING", "SUSPENDED")
FINISHED: Final = ("COMPLETED", "FAILED", "CANCELLED")
CLASSES: Final = {job_pb2.JOB_CLASS_TRIAL_AND_ERROR: "te"}
SET_ASIDE: Final = ("quarantined", "unhealthy", "unreachable")
ENDED: Final = "ended"
"""The state of a node that is gone as was announced."""
_GPU_STATES: Final = {number: name.removeprefix("GPU_STATE_").lower() for name, number in client_pb2.GpuState.items()}
_NO_LOAD: Final = client_pb2.BoardLoad()


def state_of(job: Any) -> str:
    """Return a job's state in the user's words, such as RUNNING."""
    return job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")


def gpu_state(load: client_pb2.GpuLoad | client_pb2.NodeGpu) -> str:
    """Return a GPU's state in the user's words, such as idle."""
    return _GPU_STATES[load.state]


def share_of(share: job_pb2.Share) -> float:
    """Return a share as a number; 0 if it is not set."""
    return float(Fraction(share.numerator, share.denominator)) if share.denominator else 0.0


def optional(message: Any, name: str) -> Any:
    """Return a field, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


@dataclass(slots=True)
class ClusterPicture:
    """Rows by id, as the master told them last. ``known`` is whether it has told everything once."""

    known: bool = False
    jobs: dict[str, client_pb2.BoardJob] = field(default_factory=dict)
    nodes: dict[str, client_pb2.BoardNode] = field(default_factory=dict)
    loads: dict[str, client_pb2.BoardLoad] = field(default_factory=dict)
    queues: dict[str, client_pb2.BoardQueue] = field(default_factory=dict)
    notices: client_pb2.BoardNotices = field(default_factory=client_pb2.BoardNotices)
    offset_s: float = 0.0
    """By how much the master's clock is ahead of this one."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _free_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _made: dict[str, dict[str, tuple[client_pb2.BoardNode, client_pb2.BoardLoad, str]]] = field(default_factory=dict)
    """Cells by node and kind, and the two rows that each was made from."""

    def take(self, update: client_pb2.BoardUpdate, now: float) -> None:
        """Take in one message; the first of all belongs to a picture without anything."""
        self.offset_s = update.now - now
        self.nodes.update((row.name, row) for row in update.nodes)
        self.loads.update((row.name, row) for row in update.loads)
        self.jobs.update((row.job_id, row) for row in update.jobs)
        self.queues.update((row.pool, row) for row in update.queues)
        for name in update.nodes_gone:
            self.nodes.pop(name, None)
            self.loads.pop(name, None)
            self._made.pop(name, None)
        for id in update.jobs_gone:
            self.jobs.pop(id, None)
            self._numbers.pop(id, None)
        if update.HasField("notices"):
            self.notices = update.notices
        self.known = self.known or update.last

    @property
    def present(self) -> list[str]:
        """The names of all nodes but those that have ended as announced, which count nowhere."""
        return [name for name in self.nodes if self.load(name).state != ENDED]

    @property
    def gpu_count(self) -> int:
        """How many GPUs the cluster has."""
        return sum(len(self.nodes[name].gpus) for name in self.present)

    def load(self, name: str) -> client_pb2.BoardLoad:
        """Return how a node and its GPUs are; nothing is set if that is not known."""
        return self.loads.get(name, _NO_LOAD)

    def cell(
        self, kind: str, name: str, make: Callable[[client_pb2.BoardNode, client_pb2.BoardLoad], dict[str, Any]]
    ) -> str:
        """Return the cell of that kind of a node, made anew only if one of the two rows of the node is another one."""
        node, load, cells = self.nodes[name], self.load(name), self._made.setdefault(name, {})
        made = cells.get(kind)
        if made is None or made[0] is not node or made[1] is not load:
            made = cells[kind] = (node, load, encoded(make(node, load)))
        return made[2]

    def holder(self, id: str) -> dict[str, str]:
        """Return what is told of a job where something is said to hold it."""
        return {"id": id, "name": self._name(id), "user": self._user(id)}

    def number(self, id: str) -> int:
        """Return a number that no other job has ever had, for where an id would take much room."""
        if id not in self._numbers:
            self._numbers[id] = next(self._free_numbers)
        return self._numbers[id]

    def _name(self, id: str) -> str:
        return self.jobs[id].name if id in self.jobs else ""

    def _user(self, id: str) -> str:
        return self.jobs[id].user if id in self.jobs else ""


def gpus_words(job: client_pb2.BoardJob) -> str:
    """Return how many GPUs a job has, or wants: ``2``, ``1–4``, ``1/2``."""
    if job.gpus_allocated.numerator:
        return count_words(job.gpus_allocated)
    low, high = count_words(job.gpus_min), count_words(job.gpus_max)
    return low if low == high or high == "0" else f"{low}–{high}"


def count_words(share: job_pb2.Share) -> str:
    """Return a number of GPUs as people write it."""
    value = Fraction(share.numerator, share.denominator) if share.denominator else Fraction(0)
    if value.denominator == 1 or (value.numerator == 1 and value.denominator <= 16):
        return str(value)
    return f"{float(value):.2f}".rstrip("0")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which gpu2 comes before gpu10."""
    parts, number, text = list[tuple[int, int, str]](), "", ""
    for letter in name:
        if letter.isascii() and letter.isdigit():
            parts, text = ([*parts, (1, 0, text)], "") if text else (parts, text)
            number += letter
        else:
            parts, number = ([*parts, (0, int(number), "")], "") if number else (parts, number)
            text += letter
    return (*parts, (0, int(number), "") if number else (1, 0, text))
