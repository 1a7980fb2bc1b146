"""A cluster under test: a few words per step, and a pass of the policy after each."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Command, Launch, Record, Stop, WakeAt
from ebbtide_core.estimates.work import NOTHING_PROVED, Assumptions
from ebbtide_core.job.job import Job
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    AttemptRef,
    ExitFacts,
    GpuFacts,
    GpuId,
    JobClass,
    JobId,
    NodeId,
    ProgressFacts,
    parts,
)
from ebbtide_core.policies.registry import create_policy

GIB = 2**30
DONE = ExitFacts()
"""The end of a job that was not asked to stop and has nothing more to do."""


def registration(name: str, gpus: int = 4, **changes: Any) -> e.NodeRegistered:
    """A node that registers, with GPUs named like ``a0``, ``a1``."""
    facts = tuple(GpuFacts(GpuId(f"{name}{i}"), i, "A100", 40 * GIB) for i in range(gpus))
    defaults: dict[str, Any] = {
        "hostname": name, "boot_id": "boot-1", "gpus": facts, "cpus": 32.0, "mem_bytes": 256 * GIB,
        "checkpoint_root_id": f"root-{name}", "gpu_backend": "fake", "version": "0",
    }  # fmt: skip
    return e.NodeRegistered(node=NodeId(name), **(defaults | changes))


def stepped_aside(**changes: Any) -> ExitFacts:
    """The end of an attempt that saved when it was asked to stop."""
    facts: dict[str, Any] = {"exit_code": 85, "stop_requested": True, "delivered": True, "caught": True}
    return ExitFacts(**(facts | {"acknowledged": True} | changes))


class Lab:
    """Drives a cluster by hand. Every step takes a second, and a scheduling pass follows it."""

    def __init__(
        self,
        policy: str = "fitgpp",
        nodes: str = "a",
        gpus: int = 4,
        assumed: Assumptions = NOTHING_PROVED,
        **options: str,
    ) -> None:
        self.cluster = Cluster(create_policy(policy, options), assumed)
        self.now = 1000.0
        self.journal: list[tuple[float, e.Event]] = []
        self.last: list[Command] = []
        self.wakes: list[tuple[float, float]] = []
        for name in nodes:
            self.tell(registration(name, gpus))

    def tell(self, event: e.Event) -> list[Command]:
        """Hand in a fact; returns what was asked of the world."""
        self.now += 1.0
        commands = self.cluster.handle(event, self.now)
        commands += self.cluster.handle(e.SchedulingDue(), self.now)
        self.journal += [(self.now, command.event) for command in commands if isinstance(command, Record)]
        self.wakes += [(self.now, time) for time in wake_times(commands)]
        self.last = commands
        return commands

    def known(self, job: Job) -> tuple[AttemptRef, ...]:
        """What a node says that still has the job's newest attempt."""
        return (AttemptRef(job.id, len(job.attempts)),)

    def wait(self, seconds: float) -> list[Command]:
        """Let time go by."""
        self.now += seconds
        return self.tell(e.SchedulingDue())

    def submit(
        self, gpus: float | str = 1, to: float | str | None = None, *, te: bool = False, hold: bool = False, **spec: Any
    ) -> Job:
        """Submit a job for ``gpus`` (to ``to``) GPUs."""
        low = parts(Fraction(gpus))
        high = parts(Fraction(to)) if to is not None else low
        job_class = JobClass.TRIAL_AND_ERROR if te else JobClass.BEST_EFFORT
        id = JobId(str(len(self.cluster.state.jobs) + 1))
        job = JobSpec(command=("x",), workdir="/", gpus_min=low, gpus_max=high, job_class=job_class, **spec)
        self.tell(e.JobSubmitted(id, job, "ann", hold))
        return self.cluster.state.jobs[id]

    def running(self, *args: Any, **kwargs: Any) -> Job:
        """Submit a job that starts at once."""
        job = self.submit(*args, **kwargs)
        self.start(job)
        return job

    def start(self, job: Job) -> None:
        """The job's newest attempt runs."""
        attempt = job.attempts[-1]
        self.tell(e.AttemptStarted(job.id, attempt.number, 1000 + attempt.number))

    def progress(self, job: Job, step: int) -> None:
        """The job reports a step."""
        self.tell(e.ProgressReported(job.id, len(job.attempts), ProgressFacts(step, 100)))

    def exit(self, job: Job, exit: ExitFacts | None = None) -> None:
        """The job's newest attempt ends (by default, as one that saved), its GPUs not yet proven free."""
        self.tell(e.AttemptExited(job.id, len(job.attempts), exit or stepped_aside()))

    def free(self, job: Job) -> None:
        """What it held is free."""
        self.tell(e.AttemptFreed(job.id, len(job.attempts)))

    def end(self, job: Job, exit: ExitFacts | None = None) -> None:
        """Both."""
        self.exit(job, exit)
        self.free(job)

    def settle(self) -> None:
        """Those that are asked to stop step aside, and those that are launched start, until nothing more follows."""
        for _ in range(1000):
            jobs = [job for job in self.cluster.state.jobs.values() if job.live is not None]
            stopping = [job for job in jobs if job.attempts[-1].stop is not None]
            starting = [job for job in jobs if job.attempts[-1].stop is None and job.attempts[-1].started is None]
            if not stopping and not starting:
                return
            for job in stopping:
                self.end(job)
            for job in starting:
                if job.running and job.attempts[-1].started is None:
                    self.start(job)
        raise AssertionError("the policy never comes to rest")


def gpus_of(job: Job) -> set[str]:
    """The GPUs that the job's newest attempt holds."""
    holding = job.holding
    return set(holding.allocation.gpu_ids) if holding is not None else set()


def stopped(commands: Iterable[Command]) -> set[str]:
    """Jobs that were asked to stop."""
    return {command.job for command in commands if isinstance(command, Stop)}


def launched(commands: Iterable[Command]) -> set[str]:
    """Jobs that were started."""
    return {command.job for command in commands if isinstance(command, Launch)}


def wake_times(commands: Iterable[Command]) -> list[float]:
    """When the core wants to be woken."""
    return [command.time for command in commands if isinstance(command, WakeAt)]
