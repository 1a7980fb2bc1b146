"""Holds the facets of a job or an attempt: what is known of one side of it, as a value of its own.

A facet that seldom changes is immutable. All jobs share the one of which nothing is known yet, and a change replaces
it as a whole (`dataclasses.replace`). The other facets belong to one job or attempt, and their fields are assigned to.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ebbtide_core.events import AttemptRefused
from ebbtide_core.job.meter import MeasuredRate, Setting
from ebbtide_core.job.outcome import Fate
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import (
    CheckpointFacts,
    ExitFacts,
    GpuId,
    JobId,
    JobState,
    NodeAllocation,
    NodeId,
    ProgressFacts,
    Task,
)


@frozen
class Lineage:
    """Which other jobs a job belongs to, or stands for."""

    task: Task | None = None
    """Which task of which array it is, if it is one."""
    again_of: JobId | None = None
    """The job that `ebb requeue` submitted again as this one, if any."""
    again_as: JobId | None = None
    """The job as which `ebb requeue` submitted this one again, if it did."""


ALONE: Final = Lineage()
"""That of a job which has to do with no other one."""


@frozen
class NextAttempt:
    """What is settled about the next attempt of a job."""

    resumes: bool = False
    """Whether the last attempt stepped aside, so that the next one resumes the job."""
    at_head: bool = False
    """Whether it goes to the head of the queue, because the job had its turn before."""
    not_before: float = 0.0
    """The Unix time before which it does not start, because others failed."""
    pool: str = ""
    """The pool that the job moves to once it holds nothing; empty if it stays where it is."""
    need_s: float = 0.0
    """For how many seconds it needs a node, rounded up, as of when the job was queued; 0 where no node ever ends."""
    script: Hashable = None
    """What it is a run of, if some scripts may not share a GPU and it takes a share, as of when the job was queued."""

    def returning(self) -> "NextAttempt":
        """Return it as one that goes to the head of the queue."""
        return self if self.at_head else replace(self, at_head=True)

    def resuming(self) -> "NextAttempt":
        """Return it as one that resumes the job."""
        return self if self.resumes else replace(self, resumes=True)


FIRST: Final = NextAttempt()
"""That of a job which waits for its first attempt."""


@frozen
class Retries:
    """How often a job was started again because an attempt failed, or a launch."""

    restarts: int = 0
    """How often it went on after an attempt that ended, or was interrupted, without being asked to."""
    failures: int = 0
    """How many of its attempts failed and were tried again, at most as many as its spec allows."""
    requeues_in_row: int = 0
    """How often in a row it had to be run again without having saved anything; each time, it waits longer."""
    vain_in_row: int = 0
    """How many launches in a row failed, on any node, since an attempt of it last ran."""
    launches_in_vain: Mapping[NodeId, int] = field(default_factory=dict)
    """How many launches failed on each node since an attempt of it last ran."""

    def with_launches(self, node: NodeId, there: int, *, in_row: int | None = None) -> "Retries":
        """Return them with ``there`` failed launches on ``node``, and with ``in_row`` on all nodes, if given."""
        return replace(
            self,
            vain_in_row=self.vain_in_row if in_row is None else in_row,
            launches_in_vain={**self.launches_in_vain, node: there},
        )


NO_RETRIES: Final = Retries()
"""Those of a job that was never started again."""


@frozen
class GpuMemory:
    """How much GPU memory a job is given, and what it used (see `ebbtide_core.measuring.gpu_memory`)."""

    requested_bytes: int = 0
    """How much it asks for on each GPU now; its spec has what it asked for when it was submitted."""
    changed_because: str = ""
    """Where the current request comes from, if not from the spec."""
    peak_bytes: int = 0
    """The most that its ended attempts used of one GPU, 0 if that is not known."""
    overruns: int = 0
    """How many of its attempts used more than they were given."""
    alone_after: int = 0
    """The number of the attempt that ran out of GPU memory, so that the job ran once more with a GPU of its own."""


NO_GPU_MEMORY: Final = GpuMemory()
"""That of a job which asks for no amount, and of which nothing was measured."""


@frozen
class Eligibility:
    """Which nodes and GPUs a job may use at all (see `ebbtide_core.resources.eligibility`)."""

    constrained: bool = False
    """Whether it may not use every node and GPU, because of what it needs or because of what is excluded."""
    excluded: frozenset[NodeId] = frozenset()
    """The nodes that are closed to it since its submit."""
    excluded_because: Mapping[NodeId, str] = field(default_factory=dict)
    """Why each of these nodes is closed to it."""
    excluded_gpus: frozenset[GpuId] = frozenset()
    """The GPUs that are closed to it, because its log reported a fault there."""
    left_out_until: Mapping[NodeId, float] = field(default_factory=dict)
    """Of the excluded nodes those that are only left out, after failed launches, until a Unix time."""

    def without(self, node: NodeId, reason: str) -> "Eligibility":
        """Return it with ``node`` closed for ``reason``."""
        because = {**self.excluded_because, node: reason}
        return replace(self, constrained=True, excluded=frozenset(because), excluded_because=because)

    def without_gpus(self, gpus: Iterable[GpuId]) -> "Eligibility":
        """Return it with the ``gpus`` closed."""
        return replace(self, constrained=True, excluded_gpus=self.excluded_gpus.union(gpus))

    def left_out(self, node: NodeId, until: float) -> "Eligibility":
        """Return it with ``node``, which is closed, open again at Unix time ``until``."""
        return replace(self, left_out_until={**self.left_out_until, node: until})

    def again_with(self, node: NodeId) -> "Eligibility":
        """Return it with ``node``, which was left out, open again."""
        because = {other: reason for other, reason in self.excluded_because.items() if other != node}
        until = {other: time for other, time in self.left_out_until.items() if other != node}
        return replace(self, excluded=frozenset(because), excluded_because=because, left_out_until=until)


ANYWHERE: Final = Eligibility()
"""That of a job which may use every node and GPU."""
CONSTRAINED: Final = Eligibility(constrained=True)
"""That of a job which needs certain nodes or GPUs, and from which nothing is excluded."""


@frozen
class Saved:
    """What a job has saved, and where."""

    checkpoint: CheckpointFacts | None = None
    """Its newest checkpoint, if it reported one."""
    root_id: str = ""
    """Which folder of checkpoints the node where it ran last uses: nodes with the same one see the same files."""
    move_failure: str = ""
    """Why its checkpoint could not be copied to another node since it last ran, if so."""

    def on_node(self, root_id: str) -> "Saved":
        """Return it after the job ran on a node that uses the folder ``root_id``."""
        return self if self.root_id == root_id and not self.move_failure else Saved(self.checkpoint, root_id)


NOTHING_SAVED: Final = Saved()
"""That of a job which never ran."""


@frozen
class CountFrom:
    """The step and the work, in seconds on one GPU, that belong together: later steps came of later work."""

    step: int = 0
    work_s: float = 0.0


FROM_THE_BEGINNING: Final = CountFrom()
"""That of a job of which no work is lost without a trace."""


@frozen
class Measured:
    """What a job reported of its progress, and what was measured from that."""

    progress: ProgressFacts | None = None
    """The steps that it reported last, if it did."""
    progress_at: float = 0.0
    """The Unix time of that report."""
    rates: Mapping[Setting, MeasuredRate] = field(default_factory=dict)
    """Its recorded speed (see `ebbtide_core.measuring.rates`)."""
    rungs: Mapping[int, float | None] = field(default_factory=dict)
    """Its results by steps, as a task under successive halving (see `ebbtide_core.lifecycle.successive_halving`); None
    is not a number."""
    counted: ProgressFacts | None = None
    """How far the work is that counts: the same steps, until work is lost; None if that is not known."""
    count_from: CountFrom | None = FROM_THE_BEGINNING
    """What counts of both began there; None from when it is not known what is lost until the next first step."""

    def after(self, progress: ProgressFacts, at: float) -> "Measured":
        """Return it after the job reported its ``progress`` at Unix time ``at``."""
        return Measured(progress, at, self.rates, self.rungs, progress, self.count_from)

    def begun_at(self, step: int, work_s: float) -> "Measured":
        """Return it after an attempt made ``step``, the first that it said, with ``work_s`` of work done by then."""
        return self if self.count_from is not None else replace(self, count_from=CountFrom(step, work_s))

    def work_of_a_step(self, work_s: float) -> float | None:
        """Return how much work a step takes, if ``work_s`` is done; None if that is not known."""
        if self.counted is None or (begin := self.count_from) is None:
            return None
        steps, work_s = self.counted.step - begin.step, work_s - begin.work_s
        return work_s / steps if steps > 0 and work_s > 0 else None

    def back_at(self, step: int | None) -> "Measured":
        """Return it after the work that came after ``step`` was lost; None if it is not known which step that was."""
        progress = self.progress
        back = None if progress is None or step is None else ProgressFacts(step, progress.total)
        return replace(self, counted=back, count_from=None if back is None else self.count_from)


NOTHING_MEASURED: Final = Measured()
"""That of a job which reported nothing."""


@frozen
class Times:
    """How long a job ran, worked and was held, in seconds."""

    ran_s: float = 0.0
    """How long its ended attempts ran."""
    work_s: float = 0.0
    """The work of ended attempts that was not lost, in seconds on one GPU (see `ebbtide_core.estimates.work`)."""
    held_s: float = 0.0
    """How long its user held it while it did not run, without the time since ``held_since``."""
    held_since: float | None = None
    """The Unix time since which its user holds it and it does not run; None if that is not so."""

    def after_run(self, ran_s: float, work_s: float) -> "Times":
        """Return them after the job ran on, and did so much more work that was not lost."""
        return Times(self.ran_s + ran_s, self.work_s + work_s, self.held_s, self.held_since)


NO_TIMES: Final = Times()
"""Those of a job which never ran, and was never held."""


@dataclass(slots=True)
class Suspending:
    """How often a job stepped aside, and what that costs it (see `ebbtide_core.estimates.restart_costs`)."""

    preemptions: int = 0
    """How often it was asked to step aside for another job."""
    resizes: int = 0
    """How often it went on with another share of GPUs."""
    fruitless_in_row: int = 0
    """How often in a row it ended without having saved anything; after too many times, it is held."""
    save_s: float | None = None
    """How long it takes to step aside, None before that was measured."""
    restart_cost_s: float | None = None
    """What it loses by stepping aside and coming back, None before its first suspension."""
    proved: bool = False
    """Whether it saved when it was asked to step aside, or went on from its last step afterwards."""


@frozen
class End:
    """How a job ended."""

    state: JobState
    """One of the states that are final."""
    at: float
    """Unix time."""
    exit_code: int | None
    """That of its last attempt; None if it had none, or if that is not known."""


@frozen
class AttemptEnd:
    """How an attempt ended."""

    at: float
    """The Unix time at which its last process ended, or at which a node refused to start it."""
    exit: ExitFacts | None
    """How its processes ended; None if it never ran."""
    outcome: str
    """What that meant, in words."""
    freed: float | None
    """The Unix time at which what it held was proven to be free; None before."""
    fate: Fate = Fate.KEPT
    """What becomes of the work that it did since its last checkpoint."""
    # A forecast has to decide, so work of an unknown fate is to be redone if the job was seen to leave without saving;
    # the ledger, which only reports, has a column for what nobody knows.
    redone_since: float | None = None
    """The Unix time since which its job has to do its work again; None if there is nothing to do again."""


@dataclass(slots=True)
class Swap:
    """What an attempt holds, and where its GPU memory is, if that can be moved to host memory while the attempt lives.

    `ebbtide_core.lifecycle.swaps` moves it.
    """

    kept: NodeAllocation | None
    """What it holds besides its allocation until it ends."""
    count: int = 0
    """How often its memory was moved to host memory."""
    out_since: float | None = None
    """The Unix time at which it was moved there last; None while it is on the GPU."""
    out_bytes: int = 0
    """How much was moved there, 0 while it is on the GPU."""
    returning_since: float | None = None
    """The Unix time at which it was asked to come back; None unless it is on the way."""
    unsaved_work_s: float = 0.0
    """The work that it did before it was moved there, since its last checkpoint, in seconds on one GPU."""


@dataclass(slots=True)
class GangMember:
    """One node's part of an attempt on several nodes. ``ended`` is a Unix time, None while it may have processes."""

    started: bool = False
    ended: float | None = None
    exit: ExitFacts | None = None
    refusal: AttemptRefused | None = None
    freed: bool = False


@dataclass(slots=True)
class Gang:
    """How far the nodes of an attempt on several nodes are (see `ebbtide_core.job.gang`)."""

    members: dict[NodeId, GangMember]
    """The nodes where its part was launched."""
    broken_by: NodeId | None = None
    """The node whose failure ended it, if one did."""
    port: int = 0
    """Where its ranks meet, as its first node chose it; 0 before that node said so."""


@frozen
class IdleTime:
    """Since when an attempt has used none of its GPUs (see `ebbtide_core.lifecycle.idling`)."""

    since: float
    """Unix time."""
    suspend_at: float | None
    """The Unix time at which it is suspended for that; None if it is not."""
    noted: float
    """The Unix time at which that was found out."""
