"""Decides how the jobs on each GPU of the node share it, and what is done when an MPS server fails.

All shares of a GPU share it in one way at a time: as clients of an MPS server, or by time-slicing. If a server fails,
all its clients are ended together, and go on from their last checkpoints. No client is blamed for a server that died.
A fatal fault is blamed on the attempt that ended first, in the second before the fault was found, if it was the only
client, was ended by a signal, or its job is first for the second time. Else it may be a victim that noticed first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from ebbtide_machine.threads import on_daemon_thread

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.contract.intent import AllocatedGpu as Part
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.gpu.backend import Gpu, GpuReading, GpuSettings
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask
from ebbtide_agent.mps import daemon as daemons
from ebbtide_agent.mps.control import ControlFailed, MpsControl
from ebbtide_agent.mps.daemon import FAULT, MpsDaemon
from ebbtide_agent.mps.environment import allocator_environment, mps_environment, torch_version, without_mps
from ebbtide_agent.mps.memory_limit import NotLimited, have_limit_set
from ebbtide_agent.processes.cgroup import ControlGroup, group_name, parent_of_attempts

log = logging.getLogger(__name__)


# Seconds between two looks whether daemon and server live, and the number of looks after which the server is asked for
# its status.
_LOOK_S = 1.0
_LOOKS_PER_QUESTION = 30
_SILENT_TIMES = 3
# An attempt that ended by itself so shortly before a fault was found may have caused it.
_CAUSE_S = 1.0
# How long a launch waits for the server that was on its GPU before; a failed server may hang in the driver.
_PATIENCE_S = 60.0
_PAUSE_S = 0.05
_SETTINGS_S = 10.0
_LOOK_AT_TORCH_S = 5.0
# The first compute capability with limits for each client, and with memory of its own for each.
_VOLTA = 7
# How long after a daemon that did not start another one is tried.
_TRY_AGAIN_S = 600.0
_RESTARTING = "MPS server failed; restarting"


class SharingMode(StrEnum):
    """How an attempt shares its GPU."""

    MPS = "mps"
    TIME_SLICING = "time-slicing"


class NotShared(Exception):
    """The attempt cannot be started on its GPU now; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class _End:
    """An attempt that ended by itself, and not well."""

    at: float  # on the monotonic clock
    key: AttemptKey
    signalled: bool


@dataclass(slots=True)
class _Shared:
    """One GPU, and the attempts that share it."""

    control: MpsControl
    modes: dict[AttemptKey, SharingMode] = field(default_factory=dict)
    daemon: MpsDaemon | None = None
    failures: dict[AttemptKey, str] = field(default_factory=dict)  # why each must resume from a checkpoint
    ends: list[_End] = field(default_factory=list)  # in their order
    silent: int = 0  # questions in a row that were not answered
    trouble: str = ""  # why nothing may be placed on it
    not_before: float = 0.0  # when a daemon that did not start is tried again, on the monotonic clock
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watch: "asyncio.Task[None] | None" = None

    def clients(self) -> list[AttemptKey]:
        """Return the attempts that compute through the server."""
        return [key for key, mode in self.modes.items() if mode is SharingMode.MPS]


def _ignore(key: AttemptKey, reason: str) -> None:
    pass


class GpuSharing:
    """Keeps track of which attempts share which GPU, and how.

    `binary` is the path of NVIDIA's control program; empty: no MPS.
    """

    def __init__(self, node_dir: Path, binary: str = "", look_s: float = _LOOK_S) -> None:
        self._directory = node_dir.resolve() / "mps"
        self._binary = binary
        self._look_s = look_s
        self._gpus: dict[str, _Shared] = {}
        self._mem_bytes: dict[str, int] = {}
        self._fit = frozenset[str]()
        self._is_real = False
        self._driver_limits = True  # as far as is known
        self._suspects = set[str]()  # jobs that were first to end in a fault
        self._fail: Callable[[AttemptKey, str], None] = _ignore

    async def start(self, fail: Callable[[AttemptKey, str], None]) -> None:
        """Take over the daemons that the agent before this one has started. Raises OSError.

        `fail` is called for each attempt that has to end because its server failed, with the reason.
        """
        self._fail = fail
        for record in await asyncio.to_thread(daemons.records, self._directory):
            found = MpsDaemon.load(record)
            if found is None:
                log.error("event=damaged-record file=%s", record.name)
                continue
            self._gpus[found.control.uuid] = _Shared(found.control, daemon=found)
            log.info("event=mps-adopted gpu=%s daemon=%d", found.control.uuid, found.daemon.pid)

    def adopt(self, intent: Intent) -> None:
        """Count an attempt that the agent before this one has launched."""
        part = _part_of(intent)
        if part is not None and intent.sharing:
            self._gpu(part.uuid).modes[intent.job_id, intent.attempt] = SharingMode(intent.sharing)
        elif part is None:
            self._keep_servers_away(intent)

    def watch(self) -> None:
        """Watch the daemons that were taken over, once all attempts that use them are counted."""
        for gpu in self._gpus.values():
            if gpu.daemon is not None:
                self._watch(gpu)

    async def set_gpus(self, gpus: tuple[Gpu, ...], settings: Callable[[str], GpuSettings], *, fake: bool) -> None:
        """Learn which GPUs there are and which can have MPS; `settings` may block for ever, and then none has it."""
        self._is_real = not fake
        self._mem_bytes = {gpu.uuid: gpu.mem_bytes for gpu in gpus}
        if self._binary:
            try:
                async with asyncio.timeout(_SETTINGS_S):
                    self._fit = await on_daemon_thread(
                        lambda: frozenset(gpu.uuid for gpu in gpus if _is_fit(gpu, settings))
                    )
            except TimeoutError:
                log.error("event=no-mps reason='the driver does not say how its GPUs are set'")

    def has_mps(self, uuid: str) -> bool:
        """Return whether shares of this GPU normally compute through an MPS server."""
        return uuid in self._fit

    async def prepare(self, intent: Intent) -> Intent:
        """Return the intent completed by how it shares its GPU, ready to be launched. Raises NotShared."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                part = _part_of(intent)
                if part is not None:
                    return await self._share(intent, part)
                for held in intent.gpus:
                    await self._vacate(held.uuid)
                self._keep_servers_away(intent)
                return intent
        except TimeoutError:
            raise NotShared(f"the MPS server that was on its GPU does not end ({_PATIENCE_S:g} s)") from None

    def forget(self, key: AttemptKey) -> None:
        """Forget an attempt of which no process is left."""
        for gpu in self._gpus.values():
            if gpu.modes.pop(key, None) is not None:
                gpu.failures.pop(key, None)
                gpu.changed.set()

    async def verdict(self, intent: Intent, signalled: bool) -> str:
        """Return why the server is to blame that an attempt did not end well; empty if the attempt itself is.

        `signalled` says whether the attempt's process was ended by a signal.
        """
        part, key = _part_of(intent), (intent.job_id, intent.attempt)
        gpu = None if part is None else self._gpus.get(part.uuid)
        if gpu is None or gpu.daemon is None or gpu.modes.get(key) is not SharingMode.MPS:
            return ""
        if key not in gpu.failures:
            now = time.monotonic()
            gpu.ends = [*(end for end in gpu.ends if end.at >= now - _CAUSE_S), _End(now, key, signalled)]
            await self._question(gpu, gpu.daemon)
        return gpu.failures.get(key, "")

    def without_server(self, reading: GpuReading) -> GpuReading:
        """Return the reading without the processes of the GPU's MPS server, and unhealthy while that is replaced."""
        gpu = self._gpus.get(reading.uuid)
        if gpu is None:
            return reading
        own = {process.pid for process in gpu.daemon.processes} if gpu.daemon is not None else set()
        others = reading.processes and tuple(process for process in reading.processes if process.pid not in own)
        return replace(reading, processes=others, unhealthy_reason=reading.unhealthy_reason or gpu.trouble)

    async def close(self) -> None:
        """Stop watching the daemons, which go on as their clients do, and end those that nobody uses."""
        watches = [gpu.watch for gpu in self._gpus.values() if gpu.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for gpu in self._gpus.values():
            if (daemon := gpu.daemon) is None or gpu.modes:
                continue
            if gpu.trouble or not await self._has_clients(gpu, daemon):
                await self._end(gpu, daemon)

    # --- launching ---

    async def _vacate(self, uuid: str) -> None:
        """Wait until a daemon on the GPU that has failed, or that no attempt needs any more, has ended."""
        gpu = self._gpus.get(uuid)
        while gpu is not None and gpu.daemon is not None and (gpu.trouble or not gpu.modes):
            gpu.changed.set()
            await asyncio.sleep(_PAUSE_S)

    def _keep_servers_away(self, intent: Intent) -> None:
        """Have no server started on the whole GPUs of a job that swaps, also while it is swapped out of them."""
        for held in intent.gpus if intent.swaps else ():
            self._gpu(held.uuid).modes[intent.job_id, intent.attempt] = SharingMode.TIME_SLICING

    async def _share(self, intent: Intent, part: Part) -> Intent:
        gpu = self._gpu(part.uuid)
        async with gpu.turn:
            wait = gpu.daemon is not None and (bool(gpu.trouble) or (intent.swaps and not gpu.modes))
            if not wait:
                gpu.modes[intent.job_id, intent.attempt] = mode = await self._mode(gpu, intent)
        if wait:
            await self._vacate(part.uuid)
            return await self._share(intent, part)
        if mode is SharingMode.MPS:
            environment, limited_by = mps_environment(gpu.control, part, intent.processes), "mps"
        else:
            total_bytes = self._mem_bytes.get(part.uuid, 0)
            environment = allocator_environment(
                part, total_bytes, intent.env, intent.processes, await self._torch(intent)
            )
            limited_by = "pytorch" if environment else ""
            environment |= without_mps(self._directory) if intent.swaps or intent.account is not None else {}
        if self._is_real and await self._limit(intent, part):
            limited_by = "driver"
        return replace(intent, sharing=mode, sharing_env=environment, limited_by=limited_by)

    async def _torch(self, intent: Intent) -> Sequence[int] | None:
        """Return the version of the job's PyTorch; None if it cannot be known in time, or the GPUs are fake."""
        if not self._is_real:
            return None
        shown = {name: intent.env[name] for name in ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX") if name in intent.env}
        asked = ask(torch_version, intent.command[:1], shown, account=intent.account, within_s=_LOOK_AT_TORCH_S)
        try:
            found = await asked
        except OSError as error:
            found = NoAnswer(str(error))
        if isinstance(found, NoAnswer):
            log.warning("event=torch-unknown job=%s reason=%r", intent.job_id, found.reason)
            return None
        return found

    async def _limit(self, intent: Intent, part: Part) -> bool:
        """Have the driver limit the memory of the attempt's control group, and return whether it does.

        The group is created now, so that the attempt is certain to have it.
        """
        parent = parent_of_attempts() if self._driver_limits and part.mem_bytes else None
        group = None if parent is None else ControlGroup.create(parent, group_name(intent.node_dir, _name(intent)))
        if group is None:
            return False
        try:
            await on_daemon_thread(partial(have_limit_set, part.uuid, group.path, part.mem_bytes))
        except NotLimited as error:
            group.remove()
            self._driver_limits = False  # the reason is the driver or the agent's rights, not the job
            log.info("event=no-driver-limits gpu=%s reason=%r", part.uuid, str(error))
            return False
        return True

    async def _mode(self, gpu: _Shared, intent: Intent) -> SharingMode:
        if intent.swaps and gpu.clients():
            raise NotShared("jobs on its GPU use an MPS server, and the driver swaps no process while one runs")
        if intent.swaps or intent.account is not None or SharingMode.TIME_SLICING in gpu.modes.values():
            return SharingMode.TIME_SLICING
        if gpu.daemon is None and not await self._start_daemon(gpu):
            return SharingMode.TIME_SLICING
        return SharingMode.MPS

    async def _start_daemon(self, gpu: _Shared) -> bool:
        uuid = gpu.control.uuid
        if uuid not in self._fit or time.monotonic() < gpu.not_before:
            return False
        try:
            gpu.daemon = await on_daemon_thread(partial(daemons.start, gpu.control))
        except (ControlFailed, OSError) as error:
            gpu.not_before = time.monotonic() + _TRY_AGAIN_S
            log.error("event=mps-not-started gpu=%s reason=%r", uuid, str(error))
            return False
        log.info("event=mps-started gpu=%s daemon=%d", uuid, gpu.daemon.daemon.pid)
        self._watch(gpu)
        return True

    def _gpu(self, uuid: str) -> _Shared:
        known = self._gpus.get(uuid)
        if known is None:
            control = MpsControl(self._binary, uuid, self._directory / uuid.removeprefix("GPU-")[:8])
            known = self._gpus[uuid] = _Shared(control)
        return known

    # --- watching ---

    def _watch(self, gpu: _Shared) -> None:
        watching = self._look_after(gpu)
        gpu.watch = asyncio.create_task(watching, name=f"MPS of {gpu.control.uuid}")

    async def _look_after(self, gpu: _Shared) -> None:
        """Look after the daemon until it has ended."""
        looks = 0
        while (daemon := gpu.daemon) is not None:
            looks += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await gpu.changed.wait()
            gpu.changed.clear()
            try:
                await self._look(gpu, daemon, ask=looks % _LOOKS_PER_QUESTION == 0)
            except Exception:  # whatever NVIDIA's program does: a daemon that is not watched is never ended
                log.exception("event=mps-watch-failed gpu=%s", gpu.control.uuid)

    async def _look(self, gpu: _Shared, daemon: MpsDaemon, *, ask: bool) -> None:
        if gpu.trouble:
            if not gpu.clients():
                await self._end(gpu, daemon)
        elif gpu.modes:
            if died := daemon.died():
                self._declare(gpu, died)
            elif ask:
                await self._question(gpu, daemon)
        elif not await self._has_clients(gpu, daemon):
            await self._end(gpu, daemon)

    async def _question(self, gpu: _Shared, daemon: MpsDaemon) -> None:
        """Ask the server for its status; a busy machine may be slow to answer once."""
        try:
            failure = await on_daemon_thread(daemon.failure)
            gpu.silent = 0
        except ControlFailed as error:
            gpu.silent += 1
            log.warning("event=mps-silent gpu=%s times=%d reason=%r", gpu.control.uuid, gpu.silent, str(error))
            failure = f"it has not answered {gpu.silent} times: {error}" if gpu.silent >= _SILENT_TIMES else ""
        if failure:
            self._declare(gpu, failure)

    async def _has_clients(self, gpu: _Shared, daemon: MpsDaemon) -> bool:
        """Return whether processes that belong to no attempt may compute through the daemon."""
        try:
            clients = await on_daemon_thread(daemon.clients)
        except ControlFailed:  # nobody knows; one that is silent for good must not keep its GPU
            gpu.silent += 1
            return gpu.silent < _SILENT_TIMES and not daemon.died()
        gpu.silent = 0
        return bool(clients)

    def _declare(self, gpu: _Shared, failure: str) -> None:
        """End all clients of a server that has failed, and let no attempt be placed on the GPU until it is gone."""
        if gpu.trouble:
            return
        gpu.trouble = _RESTARTING
        cause = self._cause(gpu) if failure == FAULT else None
        reason = f"the MPS server of GPU {gpu.control.uuid} failed ({failure})"
        victims = [key for key in gpu.clients() if key != cause]
        words = "unknown" if cause is None else f"{cause[0]}.{cause[1]}"
        log.error(
            "event=mps-failed gpu=%s reason=%r clients=%d cause=%s", gpu.control.uuid, failure, len(victims), words
        )
        gpu.failures |= dict.fromkeys(victims, reason)
        gpu.ends.clear()
        gpu.changed.set()
        for key in victims:
            self._fail(key, reason)

    def _cause(self, gpu: _Shared) -> AttemptKey | None:
        """Return the attempt that has most likely caused the fault; None if that cannot be known."""
        since = time.monotonic() - _CAUSE_S
        first = next((end for end in gpu.ends if end.at >= since), None)
        if first is None:
            return None
        job = first.key[0]
        certain = first.signalled or gpu.clients() == [first.key] or job in self._suspects
        self._suspects.add(job)
        return first.key if certain else None

    async def _end(self, gpu: _Shared, daemon: MpsDaemon) -> None:
        """End the daemon, so that the next share of the GPU starts a new one."""
        async with gpu.turn:
            if gpu.modes and not gpu.trouble:
                return  # an attempt came meanwhile
            left = await on_daemon_thread(partial(daemons.end, daemon))
            if left:
                pids = ",".join(str(process.pid) for process in left)
                gpu.trouble = f"MPS server failed and does not end (pid {pids})"
                log.error("event=mps-not-ended gpu=%s pids=%s", gpu.control.uuid, pids)
                return
            gpu.daemon, gpu.trouble, gpu.silent = None, "", 0
            log.info("event=mps-ended gpu=%s", gpu.control.uuid)


def _name(intent: Intent) -> str:
    return f"{intent.job_id}.{intent.attempt}"


def _part_of(intent: Intent) -> Part | None:
    """Return the one GPU that the job has a share of; None for a job on whole GPUs, or on none."""
    return next((gpu for gpu in intent.gpus if gpu.numerator < gpu.denominator), None)


def _is_fit(gpu: Gpu, settings: Callable[[str], GpuSettings]) -> bool:
    """Return whether there can be an MPS server with limits for this GPU."""
    if gpu.parent or not gpu.uuid.startswith("GPU-"):
        return False  # it is a MIG slice
    found = settings(gpu.uuid)
    major = gpu.compute_capability.partition(".")[0]
    return not found.mig and found.compute_mode != "prohibited" and (not major or int(major) >= _VOLTA)
