"""A node's machine: which processes really live there and which GPUs they really hold, whatever anybody believes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ebbtide_agent.node_end import NodeEnd
from ebbtide_protos.v1 import agent_pb2, job_pb2

GPUS: Final = 2
GIB: Final = 2**30
RUNNING = agent_pb2.ATTEMPT_PHASE_RUNNING
EXITED = agent_pb2.ATTEMPT_PHASE_EXITED
FREED = agent_pb2.ATTEMPT_PHASE_FREED
Key = tuple[str, int]


class Violation(AssertionError):
    """A promise that was broken."""


@dataclass(frozen=True)
class Program:
    """What a job does: so many steps of a second each, a checkpoint every few, and the exit code at the end."""

    steps: int
    every: int
    code: int
    save_s: float  # from the signal to the checkpoint
    clean: bool  # exits 85 once it has saved; else it goes on until it is killed


@dataclass
class Process:
    """An attempt's processes, which outlive the agent."""

    key: Key
    program: Program
    gpus: list[str]
    pid: int
    step: int
    started_at: float
    status: agent_pb2.AttemptStatus
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    grace_s: float = 0.0
    alive: bool = True
    holds_memory: bool = True
    task: "asyncio.Task[None] | None" = None


class Truth:
    """What is so in the whole cluster: who lives, what was saved, how each job really ended."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.wall = wall
        self.programs: dict[str, Program] = {}  # by the job's name
        self.living: dict[str, Process] = {}  # by job id
        self.started: dict[str, int] = {}  # the highest attempt that ever started
        self.saved: dict[str, int] = {}  # the newest step in the checkpoint root
        self.exits: dict[str, set[int]] = {}  # codes that were recorded without having been asked to stop
        self.launches = 0
        self.violation: Violation | None = None

    def violated(self, words: str) -> Violation:
        """To be raised; it counts even where whoever carries out an order goes on after an error."""
        self.violation = self.violation or Violation(words)
        return self.violation

    def start(self, process: Process) -> None:
        """Raises `Violation` if another attempt lives, or this one ran before."""
        job, attempt = process.key
        if (other := self.living.get(job)) is not None:
            raise self.violated(f"attempt {attempt} of job {job} starts while attempt {other.key[1]} lives")
        if attempt <= self.started.get(job, 0):
            raise self.violated(f"attempt {attempt} of job {job} starts after attempt {self.started[job]}")
        self.living[job] = process
        self.started[job] = attempt
        self.launches += 1

    def save(self, job: str, step: int) -> None:
        """Raises `Violation` if that goes back."""
        if step < self.saved.get(job, 0):
            raise self.violated(f"job {job} saves step {step} after step {self.saved[job]}")
        self.saved[job] = step


class Machine:
    """Carries out orders as the real agent's attempts do; ``on_change`` is the link's, while an agent lives."""

    def __init__(self, name: str, truth: Truth, rng: Random) -> None:
        self.name = name
        self.truth = truth
        self.boots = 1
        self.gpus = [f"GPU-{name}-{index}" for index in range(GPUS)]
        self.known: dict[Key, Process | agent_pb2.AttemptStatus] = {}
        self.on_change: Callable[[agent_pb2.AttemptStatus], None] | None = None
        self.kind = "fake"
        self.end = NodeEnd()
        self._rng = rng
        self._forgotten: set[Key] = set()
        self._processes: list[Process] = []
        self._pids = 0

    # --- orders, as AttemptControl has them ---

    def leave_cluster(self) -> None:
        """The machine keeps nothing by the cluster that it is of."""

    def join(self, cluster_id: str) -> None:
        """The machine may be of any cluster."""

    def renew(self, at: float) -> None:
        """Nothing here has a lease."""

    async def launch(self, order: agent_pb2.Launch) -> None:
        key = (order.job_id, order.attempt)
        if (known := self.known.get(key)) is not None:
            self._tell(known.status if isinstance(known, Process) else known)
            return
        if key in self._forgotten:
            self._refuse(key, "it was already on this node")
            return
        step = self.truth.saved.get(order.job_id, 0)
        if order.needs_checkpoint and not step:
            raise self.truth.violated(f"job {order.job_id} is to go on from a checkpoint that does not exist")
        self._start(key, order, step)

    async def stop(self, job_id: str, attempt: int, grace_s: float, goes_on: bool = False) -> None:
        process = self.known.get((job_id, attempt))
        if isinstance(process, Process) and process.alive and not process.stopping.is_set():
            process.grace_s = grace_s
            process.stopping.set()

    async def swap(self, job_id: str, attempt: int, grace_s: float, swaps: int) -> None:
        await self.stop(job_id, attempt, grace_s)

    async def resume(self, job_id: str, attempt: int, swaps: int) -> None:
        pass

    async def forget(self, job_id: str, attempt: int) -> None:
        process = self.known.get((job_id, attempt))
        if isinstance(process, Process) and process.alive:
            return
        self._forgotten.add((job_id, attempt))
        self.known.pop((job_id, attempt), None)

    def statuses(self) -> list[agent_pb2.AttemptStatus]:
        return [one.status if isinstance(one, Process) else one for one in self.known.values()]

    # --- readings, as Telemetry has them ---

    async def inventory(self) -> list[agent_pb2.GpuInfo]:
        return [
            agent_pb2.GpuInfo(uuid=uuid, index=index, model="A100", mem_bytes=40 * GIB, healthy=True)
            for index, uuid in enumerate(self.gpus)
        ]

    async def pause(self, longest_s: float) -> None:
        """Wait for the next heartbeat; this machine never has news before."""
        await asyncio.sleep(longest_s)

    async def heartbeat(self) -> agent_pb2.Heartbeat:
        return agent_pb2.Heartbeat(gpus=[self._reading(uuid) for uuid in self.gpus])

    def _reading(self, uuid: str) -> agent_pb2.GpuReading:
        on_it = [process for process in self._processes if uuid in process.gpus and process.holds_memory]
        reading = agent_pb2.GpuReading(uuid=uuid, healthy=True, mem_used_bytes=len(on_it) * GIB, idle_bytes=0)
        for process in on_it:
            if process.alive:
                job, attempt = process.key
                reading.processes.add(
                    pid=process.pid, mem_bytes=GIB, job_id=job, attempt=attempt, user="a", command="t"
                )
        return reading

    # --- what happens to it ---

    def reboot(self) -> None:
        """Nothing of before lives, and nobody recorded how it ended."""
        self.boots += 1
        for process in self._processes:
            if process.alive:
                self._over(process, lost=True)
            process.holds_memory = False
        for one in self.known.values():
            if isinstance(one, Process) and one.status.phase == EXITED:
                one.status.phase = FREED
                self._tell(one.status)

    def kill_a_supervisor(self) -> None:
        """Some attempt's supervisor and processes die without a record."""
        alive = [process for process in self._processes if process.alive]
        if alive:
            self._over(self._rng.choice(alive), lost=True)

    # --- attempts ---

    def _start(self, key: Key, order: agent_pb2.Launch, step: int) -> None:
        gpus = [gpu.uuid for gpu in order.gpus]
        for other in self._processes:
            if other.holds_memory and not set(gpus).isdisjoint(other.gpus):
                raise self.truth.violated(f"job {key[0]} starts on a GPU whose memory job {other.key[0]} still holds")
        self._pids += 1
        now = self.truth.wall()
        status = agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], phase=RUNNING, pid=self._pids, started_at=now)
        if step:
            status.resumed_step = step
        program = self.truth.programs[order.spec.name]
        process = Process(key, program, gpus, self._pids, step, now, status)
        self.truth.start(process)
        self._processes.append(process)
        self.known[key] = process
        process.task = asyncio.create_task(self._live(process), name=f"process {key}")
        self._tell(status)

    async def _live(self, process: Process) -> None:
        program = process.program
        while process.step < program.steps:
            ahead = min(program.every, program.steps - process.step)
            try:
                async with asyncio.timeout(ahead):
                    await process.stopping.wait()
            except TimeoutError:
                process.step += ahead
                self._save(process)
                self._tell(process.status)
            else:
                await self._step_aside(process)
                return
        self._over(process, code=program.code)

    async def _step_aside(self, process: Process) -> None:
        program = process.program
        if program.clean and program.save_s <= process.grace_s:
            await asyncio.sleep(program.save_s)
            if process.alive:
                process.step += 1
                self._save(process)
                self._over(process, code=85, acknowledged=True)
        else:
            await asyncio.sleep(process.grace_s)
            if process.alive:
                self._over(process, killed=True)

    def _save(self, process: Process) -> None:
        self.truth.save(process.key[0], process.step)
        process.status.progress.CopyFrom(job_pb2.Progress(step=process.step, total=process.program.steps))
        process.status.checkpoint.CopyFrom(job_pb2.Checkpoint(step=process.step, bytes=1, path="p", verified=True))

    def _over(
        self, process: Process, code: int = 0, lost: bool = False, killed: bool = False, acknowledged: bool = False
    ) -> None:
        process.alive = False
        if process.task is not None and process.task is not asyncio.current_task():
            process.task.cancel()
        job = process.key[0]
        del self.truth.living[job]
        asked = process.stopping.is_set()
        if not lost and not killed and not acknowledged:
            self.truth.exits.setdefault(job, set()).add(code)
        record = agent_pb2.ExitRecord(
            exit_code=code, signal=9 if killed else 0, ended_at=self.truth.wall(), stop_requested=asked,
            delivered=asked and (killed or acknowledged), caught=True, acknowledged=acknowledged, killed=killed,
            checkpointed=job_pb2.CHECKPOINTED_YES if acknowledged else job_pb2.CHECKPOINTED_NO,
        )  # fmt: skip
        process.status.phase = EXITED
        process.status.lost = lost
        process.status.exit.CopyFrom(record)
        self._tell(process.status)
        slow = self._rng.random() < 0.1
        asyncio.get_running_loop().call_later(self._rng.uniform(0.0, 8.0), self._freed, process, slow)

    def _freed(self, process: Process, slow: bool) -> None:
        """The GPUs' memory is released, or, if that takes longer, they are told to be dirty."""
        if process.status.phase == FREED:
            return
        process.status.phase = FREED
        if slow:
            process.status.dirty_gpus.extend(process.gpus)
            process.status.dirty_reasons.extend("its memory is still in use" for _ in process.gpus)
            asyncio.get_running_loop().call_later(self._rng.uniform(1.0, 60.0), self._release, process)
        else:
            self._release(process)
        self._tell(process.status)

    def _release(self, process: Process) -> None:
        process.holds_memory = False

    def _refuse(self, key: Key, why: str) -> None:
        phase = agent_pb2.ATTEMPT_PHASE_REFUSED
        self._tell(agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], phase=phase, refusal=why))

    def _tell(self, status: agent_pb2.AttemptStatus) -> None:
        if self.on_change is not None:
            copy = agent_pb2.AttemptStatus()
            copy.CopyFrom(status)
            self.on_change(copy)
