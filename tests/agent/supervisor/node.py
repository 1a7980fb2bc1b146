"""What the tests see of a node: its attempts, its processes and its disk."""

import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ebbtide_agent.accounts.accounts import AllowedAccounts
from ebbtide_agent.attempts import recovery, survivors
from ebbtide_agent.attempts.attempts import Attempts
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.mps.sharing import GpuSharing
from ebbtide_agent.processes import procfs
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import agent_pb2, job_pb2

DEADLINE_S = 60.0
GIB = 1 << 30

LAUNCHING = agent_pb2.ATTEMPT_PHASE_LAUNCHING
RUNNING = agent_pb2.ATTEMPT_PHASE_RUNNING
EXITED = agent_pb2.ATTEMPT_PHASE_EXITED
FREED = agent_pb2.ATTEMPT_PHASE_FREED
REFUSED = agent_pb2.ATTEMPT_PHASE_REFUSED
OVER = (EXITED, FREED, REFUSED)


def python(code: str, *arguments: str) -> list[str]:
    """The command that runs this code in an interpreter that starts fast."""
    return [sys.executable, "-S", "-c", code, *arguments]


def order(
    command: list[str],
    job_id: str = "1",
    attempt: int = 1,
    gpus: tuple[job_pb2.GpuAllocation, ...] = (),
    needs_checkpoint: bool = False,
    **spec: object,
) -> agent_pb2.Launch:
    """A launch order as the master sends it."""
    defaults = {"workdir": "/", "env": {"PATH": os.environ["PATH"]}, "grace_s": 30.0}
    return agent_pb2.Launch(
        job_id=job_id,
        attempt=attempt,
        gpus=gpus,
        needs_checkpoint=needs_checkpoint,
        spec=job_pb2.JobSpec(command=command, **(defaults | spec)),
    )


def gpus(count: int, share: tuple[int, int] = (1, 1), mem_bytes: int = 4 * GIB) -> tuple[job_pb2.GpuAllocation, ...]:
    part = job_pb2.Share(numerator=share[0], denominator=share[1])
    return tuple(job_pb2.GpuAllocation(uuid=f"GPU-{i}", share=part, mem_bytes=mem_bytes) for i in range(count))


class Gpus:
    """The GPUs of a node, which the test lets say what it wants; `proofs` are of attempts that have ended."""

    def __init__(self) -> None:
        self.lost: Callable[[Sequence[str]], str] = lambda uuids: ""
        self.asked: list[tuple[str, int]] = []
        self.proofs: defaultdict[tuple[str, int], asyncio.Future[dict[str, str]]] = defaultdict(asyncio.Future)

    async def gone(self, uuids: Sequence[str]) -> str:
        return self.lost(uuids)

    async def prove_free(
        self, key: tuple[str, int], allocation: tuple[job_pb2.GpuAllocation, ...]
    ) -> Mapping[str, str]:
        self.asked.append(key)
        return await self.proofs[key]


class Node:
    """One node's attempts, and everything they reported."""

    def __init__(
        self,
        disk: Path,
        fake_gpus: bool = False,
        warm: int = 0,
        sharing: GpuSharing | None = None,
        min_uid: int = 0,
    ) -> None:
        self.dir = disk / "node"
        self.checkpoints = disk / "checkpoints" / "c1"
        self.changes: list[agent_pb2.AttemptStatus] = []
        self._changed = asyncio.Event()
        self.gpus = Gpus()
        self.exchange = Exchange()
        self.attempts = Attempts(
            NodeDirectories(self.dir, disk / "checkpoints", "c1"),
            self.gpus,
            self.exchange,
            on_change=self._note,
            fake_gpu_dir=disk / "gpus" if fake_gpus else None,
            warm=warm,
            sharing=sharing,
            allowed=AllowedAccounts(min_uid),
        )

    def _note(self, status: agent_pb2.AttemptStatus) -> None:
        self.changes.append(status)
        self._changed.set()

    def place(self, job_id: str = "1", attempt: int = 1) -> AttemptDir:
        return AttemptDir.of(self.dir, job_id, attempt)

    def log(self, job_id: str = "1", attempt: int = 1) -> str:
        path = self.place(job_id, attempt).output
        return path.read_text() if path.exists() else ""

    def status(self, job_id: str = "1", attempt: int = 1) -> agent_pb2.AttemptStatus:
        return next(s for s in self.attempts.statuses() if (s.job_id, s.attempt) == (job_id, attempt))

    def phases(self, job_id: str = "1", attempt: int = 1) -> list[int]:
        """Those that were reported, in their order, each once."""
        mine = [s.phase for s in self.changes if (s.job_id, s.attempt) == (job_id, attempt)]
        return list(dict.fromkeys(mine))

    async def launch(self, command: list[str], **options: object) -> None:
        await self.attempts.launch(order(command, **options))

    async def run(self, command: list[str], **options: object) -> agent_pb2.AttemptStatus:
        """Launch and wait for the end; returns the last status."""
        await self.launch(command, **options)
        return await self.end(options.get("job_id", "1"), options.get("attempt", 1))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, looking whenever a status changed and now and then besides."""
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self._changed.clear()
                waiter = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait([waiter], timeout=0.01)
                waiter.cancel()

    async def running(self, job_id: str = "1", attempt: int = 1, line: str = "") -> agent_pb2.AttemptStatus:
        """Wait until the attempt runs, and until its log has this line, whole, if one is given."""

        def runs() -> bool:
            status = self.status(job_id, attempt)
            assert status.phase in (LAUNCHING, RUNNING), status
            before, end, _ = self.log(job_id, attempt).rpartition("\n")
            return status.phase == RUNNING and line in before + end

        await self.until(runs)
        return self.status(job_id, attempt)

    async def end(self, job_id: str = "1", attempt: int = 1) -> agent_pb2.AttemptStatus:
        """Wait until the attempt is over; returns its status."""
        await self.until(lambda: self.status(job_id, attempt).phase in OVER)
        return self.status(job_id, attempt)

    async def stop(
        self, grace_s: float = 30.0, job_id: str = "1", attempt: int = 1, goes_on: bool = False
    ) -> agent_pb2.AttemptStatus:
        """Stop the attempt and wait for its end; returns its status."""
        await self.attempts.stop(job_id, attempt, grace_s, goes_on)
        return await self.end(job_id, attempt)

    async def prove_free(self, job_id: str = "1", attempt: int = 1, dirty: Mapping[str, str] | None = None) -> None:
        """Let it be proven that the GPUs of an attempt that has ended are free, but for the dirty ones and why."""
        self.gpus.proofs[job_id, attempt].set_result(dict(dirty or {}))
        await self.until(lambda: self.status(job_id, attempt).phase == FREED)

    async def end_all(self) -> None:
        for status in self.attempts.statuses():
            await self.stop(0.0, status.job_id, status.attempt)
        await self.until(lambda: not self.processes())

    def supervisor(self, job_id: str = "1", attempt: int = 1) -> Identity:
        return Identity.from_json(self.place(job_id, attempt).supervisor())

    def waiting(self) -> list[Identity]:
        """The supervisors that hold processes ready and have no order yet."""
        mine = [pid for pid in procfs.children(os.getpid()) for pid in procfs.children(pid)]
        return [Identity.of(pid) for pid in mine if (stat := procfs.read_stat(pid)) and stat.command == "ebb:standby"]

    def standbys(self) -> list[Identity]:
        """The processes that are held ready, or on the way there; none that is still a copy of its supervisor."""
        pids = [pid for supervisor in self.waiting() for pid in procfs.children(supervisor.pid)]
        return [Identity.of(pid) for pid in pids if (stat := procfs.read_stat(pid)) and stat.command != "ebb:standby"]

    def jobs(self) -> list[Identity]:
        """Every process that was launched on this node and lives."""
        found = [process for some in survivors.by_any_sign(self.dir.resolve()).values() for process in some]
        stats = {process: procfs.read_stat(process.pid) for process in found}
        return [process for process, stat in stats.items() if stat is None or not stat.command.startswith("ebb:")]

    def processes(self) -> list[Identity]:
        """The same, and the supervisors that live."""
        places = [AttemptDir(path) for path in self.dir.glob("attempts/*")]
        supervisors = [process for place in places if (process := _supervisor(place)) and process.is_alive()]
        return self.jobs() + supervisors

    def left(self) -> list[Identity]:
        """Of these, who does not end soon: a supervisor ends by itself after it has said that its attempt has."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found


def _supervisor(place: AttemptDir) -> Identity | None:
    try:
        return recovery.recorded_supervisor(place)
    except (OSError, ValueError, LookupError):  # a test damaged it
        return None
