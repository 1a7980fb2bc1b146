"""A world that holds the truth, for the core to be driven against.

Checkers that look only at the core's own books miss fencing bugs. Here the world knows which process really holds which
GPU: it starts processes when told to, lets them end when they like, and delivers reports late, twice and out of order.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Command, Forget, Launch, Record, Resume, Stop
from ebbtide_core.job.job import Job
from ebbtide_core.job.meter import TOGETHER, WINDOW_S
from ebbtide_core.measuring import gpu_memory as memory
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import (
    WHOLE,
    Allocation,
    AttemptRef,
    ExitFacts,
    ForeignProcess,
    GpuId,
    GpuLink,
    JobClass,
    JobId,
    JobState,
    LinkKind,
    NodeId,
    ProgressFacts,
    RefusalCause,
    SuspendMode,
    parts,
)
from ebbtide_core.policies.registry import POLICIES, create_policy
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.core.lab import GIB, registration

LOST_IN_HOST_MEMORY = ExitFacts(signal=9, stop_requested=True, killed=True, swap_failure="ended while swapped out")
NODES = ("a", "b")
GPUS = 3
PORT = 20000


SLICE = "b2"
FOREIGN_BYTES = 20 << 30


def linked(node: e.NodeRegistered) -> e.NodeRegistered:
    """The first and the last GPU of node a are an NVLink pair; the last one of node b is a MIG slice."""
    first, *between, last = node.gpus
    if node.node == "a":
        first = dataclasses.replace(first, links=(GpuLink(last.gpu, LinkKind.NVLINK),))
    else:
        last = dataclasses.replace(last, parent=GpuId("the GPU that it is cut from"))
    return dataclasses.replace(node, gpus=(first, *between, last))


def is_valid(spec: JobSpec) -> bool:
    """Whether a master would give the job to the core."""
    try:
        validate(spec)
    except SpecError:
        return False
    return True


@dataclass
class Process:
    """An attempt, or its part of one, as it really is on its node; ``part`` is what reports of it name."""

    ref: AttemptRef
    node: str
    part: NodeId
    gpus: dict[str, int]
    memory: dict[str, int]
    alive: bool = True
    free: bool = False
    asked: bool = False
    swaps: int = 0
    out: bool = False  # in host memory
    coming: bool = False  # on its way back
    to_leave: bool = False  # asked to go to host memory
    step: int = 0
    reports: list[e.Event] = field(default_factory=list)


class World(RuleBasedStateMachine):
    """Nodes that run what they are told, users who change their minds, and a network that repeats itself."""

    @initialize(policy=st.sampled_from([*POLICIES]), shares=st.booleans())
    def begin(self, policy: str, shares: bool) -> None:
        options = {field.name for field in dataclasses.fields(POLICIES[policy])}
        self.policy = create_policy(policy, {"resize_after_s": "5"} if "resize_after_s" in options else {})
        self.cluster = self.new_cluster()
        self.now = 0.0
        self.journal: list[tuple[float, e.Event]] = []
        self.processes: dict[tuple[AttemptRef, str], Process] = {}
        self.mail: list[tuple[Process, tuple[e.Event, ...]]] = []
        self.accepted: set[JobId] = set()
        self.finished: dict[JobId, JobState] = {}
        self.connected = dict.fromkeys(NODES, False)
        self.foreign: set[str] = set()
        self.shares_with_foreign = shares
        for node in NODES:
            self.connect(node)

    def new_cluster(self) -> Cluster:
        """A cluster that has heard of nothing."""
        return Cluster(self.policy)

    def pool_for(self, job: JobId) -> str:
        """The pool that a new job names."""
        return ""

    # --- what the machinery does ---

    def tell(self, event: e.Event) -> None:
        if self.cluster.refusal(event) is not None:
            return
        self._perform(self.cluster.handle(event, self.now))
        self._perform(self.cluster.handle(e.SchedulingDue(), self.now))

    def _tell_all(self, events: Iterable[e.Event]) -> None:
        for event in events:
            self.tell(event)

    def _perform(self, commands: list[Command]) -> None:
        self.journal += [(self.now, command.event) for command in commands if isinstance(command, Record)]
        for command in commands:
            if isinstance(command, Record) and isinstance(command.event, e.AttemptPlaced | e.ReturnRequested):
                job = self.cluster.state.jobs[command.event.job]
                self._check_placement(job, job.attempts[command.event.attempt - 1].allocation)
            if isinstance(command, Launch | Stop | Resume | Forget):
                for node in command.nodes:
                    if self.connected[node]:
                        self._order(command, node)

    def _check_placement(self, job: Job, allocation: Allocation) -> None:
        gpus = allocation.gpu_ids
        assert len(gpus) == 1 or SLICE not in gpus, "a MIG slice and more"
        if not self.shares_with_foreign:
            assert self.foreign.isdisjoint(gpus), "placed beside a foreign process"
        for piece in allocation.nodes:
            held = self.cluster.state.nodes[piece.node].held
            for gpu in piece.gpus:
                if gpu.gpu in self.foreign:
                    assert gpu.share < WHOLE
                    assert held.gpu_mem[gpu.gpu] + FOREIGN_BYTES <= 40 << 30, "memory that others have"

    def _order(self, order: Launch | Stop | Resume | Forget, node: NodeId) -> None:
        ref = AttemptRef(order.job, order.attempt)
        key = ref, node
        match order:
            case Launch() if key not in self.processes:
                self._launch(order, node)
            case Stop(swaps=int()) if key in self.processes:
                process = self.processes[key]
                process.to_leave |= order.swaps == process.swaps and (process.coming or not process.out)
            case Resume() if key in self.processes:
                process = self.processes[key]
                process.coming |= order.swaps == process.swaps and process.out
            case Stop() if key in self.processes and self.processes[key].out:
                self._end(self.processes[key], LOST_IN_HOST_MEMORY)
            case Stop() if key in self.processes and order.grace_s == 0:
                self._end(self.processes[key], ExitFacts(signal=9, stop_requested=True, killed=True))
            case Stop() if key in self.processes:
                self.processes[key].asked = True
            case Forget() if key in self.processes:
                assert self.processes[key].free, "told to forget an attempt whose GPUs are not free"
                del self.processes[key]
            case _:
                pass

    def _launch(self, order: Launch, node: NodeId) -> None:
        ref, nodes = AttemptRef(order.job, order.attempt), order.allocation.node_ids
        [piece] = [piece for piece in order.allocation.nodes if piece.node == node]
        first, part = node == nodes[0], NodeId(node) if len(nodes) > 1 else e.EVERY_NODE
        assert first or order.port == PORT + ref.attempt, "ranks that do not know where to meet"
        gpus = {gpu.gpu: gpu.share for gpu in piece.gpus}
        memory = {gpu.gpu: gpu.mem_bytes for gpu in piece.gpus}
        process = self.processes[ref, node] = Process(ref, node, part, gpus, memory)
        port = PORT + ref.attempt if first else 0
        self._report(process, e.AttemptStarted(ref.job, ref.attempt, 100, node=part, port=port))

    def _report(self, process: Process, event: e.Event) -> None:
        """The node sends the attempt's whole status, as it does after every change."""
        process.reports.append(event)
        if self.connected[process.node]:
            self.mail.append((process, tuple(process.reports)))

    def _end(self, process: Process, exit: ExitFacts, freed: bool = False) -> None:
        if process.alive:
            if process.out and not process.coming:
                exit = dataclasses.replace(exit, swap_failure=LOST_IN_HOST_MEMORY.swap_failure)
            process.alive, process.free = False, freed
            ref = process.ref
            self._report(process, e.AttemptExited(ref.job, ref.attempt, exit, freed=freed, node=process.part))

    def _release(self, process: Process) -> None:
        process.free = True
        self._report(process, e.AttemptFreed(process.ref.job, process.ref.attempt, node=process.part))

    def _some(self, data: st.DataObject, choices: list) -> object:
        return data.draw(st.sampled_from(choices))

    # --- what may happen ---

    @rule(
        low=st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(3)]),
        more=st.integers(0, 2),
        te=st.booleans(),
        hold=st.booleans(),
        suspend=st.sampled_from(list(SuspendMode)),
        retries=st.integers(0, 2),
        cpus=st.sampled_from([0.0, 10.0, 20.0]),
        priority=st.sampled_from([1, 42, 99]),
        nodes=st.sampled_from([1, 1, 2]),
        spread=st.booleans(),
    )
    def submit(
        self,
        low: Fraction,
        more: int,
        te: bool,
        hold: bool,
        suspend: SuspendMode,
        retries: int,
        cpus: float,
        priority: int,
        nodes: int,
        spread: bool,
    ) -> None:
        if len(self.accepted) > 12:
            return
        if suspend is SuspendMode.SWAP:
            low, more, nodes = min(low, Fraction(1)), 0, 1
        smallest = parts(low) if nodes == 1 else 2 * WHOLE * max(1, int(low))
        id = JobId(str(len(self.accepted) + 1))
        spec = JobSpec(
            command=("x",),
            workdir="/",
            pool=self.pool_for(id),
            gpus_min=smallest,
            gpus_max=max(smallest, (more + 3 * spread) * WHOLE) if nodes == 1 else smallest,
            nodes=nodes,
            max_nodes=2 if spread and nodes == 1 else 1,
            spread=spread and nodes == 1,
            job_class=JobClass.TRIAL_AND_ERROR if te else JobClass.BEST_EFFORT,
            suspend=suspend,
            retries=retries,
            cpus=cpus,
            priority=priority,
            grace_s=float(len(self.accepted) + 1),
        )
        submitted = e.JobSubmitted(id, spec, "ann", hold)
        if is_valid(spec) and self.cluster.refusal(submitted) is None:
            self.accepted.add(id)
            self.tell(submitted)
            needs = memory.learned_request(self.cluster.state, self.cluster.state.jobs[id])
            if needs is not None:
                self.tell(needs)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), size=st.integers(1, 3))
    def change_mind(self, data: st.DataObject, size: int) -> None:
        job = self._some(data, sorted(self.accepted))
        wishes = [
            e.SuspendRequested(job),
            e.ResumeRequested(job),
            e.CancelRequested(job),
            e.CancelRequested(job, True),
            e.HoldRequested(job),
            e.ReleaseRequested(job),
            e.ResizeRequested(job, size * WHOLE, size * WHOLE),
            e.DrillRequested(job),
        ]
        self.tell(self._some(data, wishes))

    @precondition(lambda self: self.cluster.state.unfinished)
    @rule(data=st.data(), priority=st.sampled_from([1, 42, 99]), weight=st.sampled_from([0.5, 1.0, 3.0]))
    def change_standing(self, data: st.DataObject, priority: int, weight: float) -> None:
        job = self.cluster.state.jobs[self._some(data, sorted(self.cluster.state.unfinished))]
        self.tell(e.JobChanged(job.id, priority, weight, job.priority, job.weight, "bob"))

    @precondition(lambda self: self.mail)
    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data: st.DataObject, again: bool) -> None:
        """Any status may come next, and come again later: older ones after newer ones, too."""
        index = data.draw(st.integers(0, len(self.mail) - 1))
        _, status = self.mail[index]
        if not again:
            del self.mail[index]
        self._tell_all(status)

    @precondition(lambda self: any(p.alive for p in self.processes.values()))
    @rule(
        data=st.data(),
        code=st.sampled_from([0, 1, 85, 99]),
        freed=st.booleans(),
        peak=st.sampled_from([None, 1, 12, 39]),
        out_of_memory=st.booleans(),
    )
    def end_by_itself(self, data: st.DataObject, code: int, freed: bool, peak: int | None, out_of_memory: bool) -> None:
        process = self._some(data, [p for p in self.processes.values() if p.alive])
        peak_bytes = None if peak is None else peak * GIB
        self._end(
            process,
            ExitFacts(exit_code=code, gpu_mem_peak_bytes=peak_bytes, out_of_memory=out_of_memory and code == 1),
            freed,
        )

    @precondition(lambda self: self._sharing())
    @rule(data=st.data(), more=st.sampled_from([1, 5, 30]))
    def use_more_gpu_memory_than_it_was_given(self, data: st.DataObject, more: int) -> None:
        process = self._some(data, self._sharing())
        [(gpu, given)] = process.memory.items()
        self._report(
            process, e.MemoryOverran(process.ref.job, process.ref.attempt, GpuId(gpu), given + more * GIB, given)
        )

    def _sharing(self) -> list[Process]:
        here = [p for p in self.processes.values() if p.alive and not p.out]
        return [p for p in here if any(share < WHOLE for share in p.gpus.values())]

    @precondition(lambda self: any(p.alive and p.asked for p in self.processes.values()))
    @rule(data=st.data(), killed=st.booleans(), freed=st.booleans())
    def step_aside(self, data: st.DataObject, killed: bool, freed: bool) -> None:
        process = self._some(data, [p for p in self.processes.values() if p.alive and p.asked])
        signal = 9 if killed else 0
        self._end(
            process,
            ExitFacts(
                exit_code=0 if killed else 85, signal=signal, killed=killed, stop_requested=True, delivered=True,
                caught=True, acknowledged=not killed,
            ),
            freed,
        )  # fmt: skip

    @precondition(lambda self: any(p.alive and p.to_leave and not p.out for p in self.processes.values()))
    @rule(data=st.data(), works=st.booleans())
    def leave_the_gpu(self, data: st.DataObject, works: bool) -> None:
        """To host memory; or that fails, and it ends."""
        process = self._some(data, [p for p in self.processes.values() if p.alive and p.to_leave and not p.out])
        if works:
            self._move_out(process)
        else:
            failure = "could not be moved"
            self._end(process, ExitFacts(signal=9, stop_requested=True, killed=True, swap_failure=failure))

    @precondition(lambda self: any(p.alive and p.coming for p in self.processes.values()))
    @rule(data=st.data(), works=st.booleans())
    def come_back(self, data: st.DataObject, works: bool) -> None:
        """To its GPU; or there is no room, and it stays in host memory."""
        process = self._some(data, [p for p in self.processes.values() if p.alive and p.coming])
        process.coming = False
        if works:
            process.out = False
            self._report(process, e.AttemptStarted(process.ref.job, process.ref.attempt, 100, None, process.swaps))
        else:
            process.to_leave = False
            self._move_out(process, "no room")

    @precondition(lambda self: self._swappable())
    @rule(data=st.data(), resumes=st.booleans())
    def suspend_to_host_memory(self, data: st.DataObject, resumes: bool) -> None:
        """Without a hitch; every status of it may still come again."""
        process = self._some(data, self._swappable())
        self._tell_all(process.reports)
        self.tell(e.SuspendRequested(process.ref.job))
        if process.to_leave:
            self._move_out(process)
            self._tell_all(process.reports)
        if resumes:
            self.tell(e.ResumeRequested(process.ref.job))

    def _swappable(self) -> list[Process]:
        here = [p for p in self.processes.values() if p.alive and self.connected[p.node] and not p.out]
        return [p for p in here if self.cluster.state.jobs[p.ref.job].spec.suspend is SuspendMode.SWAP]

    def _move_out(self, process: Process, note: str = "") -> None:
        process.out, process.to_leave = True, False
        process.swaps += 1
        swapped = e.AttemptSwapped(process.ref.job, process.ref.attempt, process.swaps, 1 << 30, 1.0, note)
        self._report(process, swapped)

    @precondition(lambda self: any(p.alive and self.connected[p.node] for p in self.processes.values()))
    @rule(data=st.data())
    def suspend_and_resume(self, data: st.DataObject) -> None:
        """A whole round without a hitch, but for the network: every status of it may still come again."""
        ref = self._some(data, [p for p in self.processes.values() if p.alive and self.connected[p.node]]).ref
        self.tell(e.SuspendRequested(ref.job))
        self.tell(e.ResumeRequested(ref.job))
        for process in [p for p in self.processes.values() if p.ref == ref and p.alive and self.connected[p.node]]:
            self._end(process, ExitFacts(exit_code=85, stop_requested=True, delivered=True, acknowledged=True))
            self._release(process)
            self._tell_all(process.reports)

    @precondition(lambda self: any(not p.alive and not p.free for p in self.processes.values()))
    @rule(data=st.data())
    def release_memory(self, data: st.DataObject) -> None:
        self._release(self._some(data, [p for p in self.processes.values() if not p.alive and not p.free]))

    def train(self) -> None:
        """Those who share GPUs get on for a while, much slower than by taking turns where they are not alone."""
        here = [p for p in self.processes.values() if p.alive and not p.out and self.connected[p.node]]
        crowd = Counter(gpu for process in here for gpu in process.gpus)
        for _ in range(TOGETHER + 2):
            self.now += WINDOW_S
            for process in here:
                if any(share < WHOLE for share in process.gpus.values()):
                    process.step += 12 if all(crowd[gpu] == 1 for gpu in process.gpus) else 1
                    ref, progress = process.ref, ProgressFacts(process.step)
                    self._perform(self.cluster.handle(e.ProgressReported(ref.job, ref.attempt, progress), self.now))

    @rule()
    def disturb_each_other(self) -> None:
        """One more small job comes, beside another if there is one, and all that was said arrives."""
        self.submit(Fraction(1, 4), 0, False, False, SuspendMode.CHECKPOINT, 0, 0.0, 42, 1, False)
        for process in [p for p in self.processes.values() if self.connected[p.node]]:
            self._tell_all(process.reports)
        self.train()

    @rule(seconds=st.sampled_from([1.0, 30.0, 700.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self._perform(self.cluster.handle(e.SchedulingDue(), self.now))

    @rule(node=st.sampled_from(NODES), index=st.integers(0, GPUS - 1))
    def come_or_go_past_the_cluster(self, node: str, index: int) -> None:
        """Somebody starts a process on a GPU that no job is to know of, or ends it."""
        if self.connected[node]:
            self.foreign ^= {gpu := f"{node}{index}"}
            found = (ForeignProcess(7, "eve", "python", FOREIGN_BYTES),) if gpu in self.foreign else ()
            self.tell(e.ForeignUseChanged(NodeId(node), GpuId(gpu), found))

    @rule(node=st.sampled_from(NODES))
    def disconnect(self, node: str) -> None:
        if self.connected[node]:
            self.connected[node] = False
            self.mail = [letter for letter in self.mail if letter[0].node != node]
            self.tell(e.NodeDisconnected(NodeId(node)))

    @rule(node=st.sampled_from(NODES))
    def lose(self, node: str) -> None:
        if not self.connected[node]:
            self.tell(e.NodeLost(NodeId(node), 20.0))

    @rule(node=st.sampled_from(NODES))
    def connect(self, node: str) -> None:
        """The agent is back, with all that it has: whatever was said before is said again."""
        if self.connected[node]:
            return
        self.connected[node] = True
        here = [process for process in self.processes.values() if process.node == node]
        known = tuple(process.ref for process in here)
        shares = self.shares_with_foreign
        facts = registration(node, GPUS, known=known, checkpoint_root_id="shared", share_with_foreign=shares)
        self.tell(linked(facts))
        for process in here:
            self._tell_all(process.reports)

    @rule(node=st.sampled_from(NODES))
    def reboot(self, node: str) -> None:
        """Everything on it is gone, and its agent comes back knowing of nothing."""
        self.processes = {key: process for key, process in self.processes.items() if process.node != node}
        self.mail = [letter for letter in self.mail if letter[0].node != node]
        self.connected[node] = False
        self.connect(node)

    @rule(node=st.sampled_from(NODES))
    def refuse_newest(self, node: str) -> None:
        """The node cannot start what it was just told to."""
        for (ref, _), process in list(self.processes.items()):
            if process.node == node and process.alive and self.connected[node] and len(process.reports) == 1:
                process.alive, process.free = False, True
                cause = RefusalCause.STOPPED if process.asked else RefusalCause.NODE
                process.reports = [e.AttemptRefused(ref.job, ref.attempt, cause, "no room", process.part)]
                self.mail = [letter for letter in self.mail if letter[0] is not process]
                self.mail.append((process, tuple(process.reports)))
                return

    @rule()
    def restart_the_master(self) -> None:
        """A new master folds the journal and hears from every node again."""
        self.cluster = self.new_cluster()
        for now, event in self.journal:
            self.cluster.replay(event, now)
        self.mail.clear()
        self.connected = dict.fromkeys(NODES, False)
        self.tell(e.MasterStarted(len(self.journal)))
        for node in NODES:
            self.connect(node)
