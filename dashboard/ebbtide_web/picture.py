"""The cluster as everybody may see it, kept from what the master tells, and cut into cells for pages. Pure."""

import base64
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_web.shared_page import encoded

FEW_GPUS: Final = 64
"""Up to so many GPUs have a card each, and a lane on the timeline; more are drawn as cells of a map, and by pool."""
HEAD: Final = 6
"""Jobs at the head of each queue that the page of the cluster shows."""
LONGEST_TEXT: Final = 128
"""Characters of a filter in the address of a page."""
UNKNOWN: Final = 255
WAITING: Final = ("PENDING", "SUSPENDED")
FINISHED: Final = ("COMPLETED", "FAILED", "CANCELLED")
CLASSES: Final = {job_pb2.JOB_CLASS_TRIAL_AND_ERROR: "te"}
SET_ASIDE: Final = ("quarantined", "unhealthy", "unreachable")
_GPU_STATES: Final = {number: name.removeprefix("GPU_STATE_").lower() for name, number in client_pb2.GpuState.items()}
_CELL: Final = struct.Struct(">BBBBI")


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
    _made: dict[str, tuple[Any, Any, str]] = field(default_factory=dict)

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
        for id in update.jobs_gone:
            self.jobs.pop(id, None)
            self._numbers.pop(id, None)
        if update.HasField("notices"):
            self.notices = update.notices
        self.known = self.known or update.last

    @property
    def gpu_count(self) -> int:
        """How many GPUs the cluster has."""
        return sum(len(node.gpus) for node in self.nodes.values())

    # --- the page of the cluster ---

    def cluster_cells(self) -> dict[str, str]:
        """Return the cells of the page of the cluster."""
        total = self.gpu_count
        cells = {
            "sums": encoded(self._sums(total)),
            "head": encoded([self._head_row(id) for queue in self.queues.values() for id in self._head_of(queue)]),
        }
        for name in sorted(self.nodes, key=lambda name: (self.nodes[name].pool, natural(name))):
            cells[f"node:{name}"] = self._cell("few" if total <= FEW_GPUS else "many", name)
        return cells

    def _cell(self, how: str, name: str) -> str:
        node, load = self.nodes[name], self.loads.get(name, client_pb2.BoardLoad())
        make = self._card if how == "few" else self._packed
        return self.made(f"{how} {name}", node, load, lambda: make(node, load))

    def made(self, key: str, node: Any, load: Any, make: Callable[[], dict[str, Any]]) -> str:
        """Return the cell ``key`` of a node, made anew only if one of the two rows of the node is another one."""
        made = self._made.get(key)
        if made is None or made[0] is not node or made[1] is not load:
            made = self._made[key] = (node, load, encoded(make()))
        return made[2]

    def holder(self, id: str) -> dict[str, str]:
        """Return what is told of a job where something is said to hold it."""
        return {"id": id, "name": self._name(id), "user": self._user(id)}

    def _sums(self, total: int) -> dict[str, Any]:
        pools: dict[str, Counter[str]] = {name: Counter() for name in self.queues}
        idle_on: Counter[str] = Counter()
        for name, load in self.loads.items():
            counts = pools.setdefault(self.nodes[name].pool if name in self.nodes else "", Counter())
            for gpu in load.gpus:
                counts[gpu_state(gpu)] += 1
            if load.state == "up":
                idle_on[name] = sum(gpu.state == client_pb2.GPU_STATE_IDLE for gpu in load.gpus)
        jobs = Counter(state_of(job) for job in self.jobs.values())
        pending = [job for job in self.jobs.values() if state_of(job) == "PENDING"]
        waiting = [job for job in pending if not job.held_by]
        oldest = min(waiting, key=lambda job: job.submit_time, default=None)
        block = idle_on.most_common(1)
        return {
            "total": total,
            "few": total <= FEW_GPUS,
            "nodes": len(self.nodes),
            "gpus": dict(sum(pools.values(), Counter())),
            "pools": [
                {
                    "name": name,
                    "gpus": dict(counts),
                    "queue": self.queues[name].length if name in self.queues else 0,
                    "policy": self.queues[name].policy if name in self.queues else "",
                }
                for name, counts in pools.items()
            ],
            "jobs": {state: count for state, count in jobs.items() if state not in FINISHED},
            "waiting": len(waiting),
            "held": len(pending) - len(waiting),
            "oldest": None if oldest is None else {"id": oldest.job_id, "since": oldest.submit_time},
            "block": {"gpus": block[0][1], "node": block[0][0]} if block and block[0][1] else None,
            "notices": {
                "doubted": list(self.notices.doubted),
                "unheard": list(self.notices.unheard),
                "recovering": self.notices.recovering,
                "quiesced": self.notices.quiesced,
            },
        }

    def _head_of(self, queue: client_pb2.BoardQueue) -> list[str]:
        """Return who is next; of the tasks of an array only the first."""
        found = dict[str, str]()
        for id in queue.job_ids:
            found.setdefault(id.partition(".")[0], id)
        return list(found.values())[:HEAD]

    def _head_row(self, id: str) -> dict[str, Any]:
        job = self.jobs.get(id, client_pb2.BoardJob(job_id=id))
        return {
            "id": id,
            "name": job.name,
            "user": job.user,
            "pool": job.pool,
            "state": state_of(job),
            "gpus": gpus_words(job),
            "since": job.submit_time,
            "reason": job.reason,
        }

    def _node_facts(self, node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
        return {
            "name": node.name,
            "pool": node.pool,
            "state": load.state,
            "reason": load.reason,
            "seen": load.last_seen or None,
            "cpus": [load.cpus_allocated, load.cpus],
            "mem": [load.mem_allocated_bytes, load.mem_bytes],
            "model": node.gpus[0].model if node.gpus else "",
        }

    def _card(self, node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
        gpus = [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "model": gpu.model,
                "mem": gpu.mem_bytes,
                "state": gpu_state(now),
                "use": optional(now, "use"),
                "used": optional(now, "mem_used_bytes"),
                "temp": optional(now, "temperature_c"),
                "power": optional(now, "power_w"),
                "reserved": now.reserved,
                "why": now.why,
                "jobs": [
                    {
                        **self.holder(holder.job_id),
                        "share": share_of(holder.share),
                        "used": optional(holder, "mem_used_bytes"),
                    }
                    for holder in now.holders
                ],
            }
            for gpu, now in zip(node.gpus, load.gpus, strict=False)
        ]
        return self._node_facts(node, load) | {"gpus": gpus}

    def _packed(self, node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
        """Return a node with eight bytes for each GPU: state, use, memory, share, and the number of its holder."""
        packed, holders = bytearray(), dict[int, list[Any]]()
        for gpu, now in zip(node.gpus, load.gpus, strict=False):
            number = 0
            for holder in now.holders[:1]:
                number = self._numbers.setdefault(holder.job_id, len(self._numbers) + 1)
                holders[number] = [number, holder.job_id, self._user(holder.job_id), self._name(holder.job_id)]
            use = round(100 * now.use) if now.HasField("use") else UNKNOWN
            full = now.HasField("mem_used_bytes") and gpu.mem_bytes
            memory = min(100, round(100 * now.mem_used_bytes / gpu.mem_bytes)) if full else UNKNOWN
            share = min(100, round(100 * sum(share_of(holder.share) for holder in now.holders)))
            packed += _CELL.pack(now.state, use, memory, share, number)
        return self._node_facts(node, load) | {
            "packed": base64.b64encode(packed).decode(),
            "holders": list(holders.values()),
        }

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
