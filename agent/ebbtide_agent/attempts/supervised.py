"""Follows one attempt for the agent: keeps its last status and the connection to its supervisor."""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ebbtide.version import CONTRACT
from ebbtide_machine.process import Identity
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.attempts import recovery
from ebbtide_agent.attempts.backstop import PATIENCE_S, Backstop
from ebbtide_agent.attempts.control_channel import ControlChannel
from ebbtide_agent.attempts.release import Gpus, Release
from ebbtide_agent.attempts.translation import allocation_of, freed, status_of
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.mps.sharing import SharingMode
from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.supervisor.lease import boottime

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_OVER = frozenset({agent_pb2.ATTEMPT_PHASE_EXITED, agent_pb2.ATTEMPT_PHASE_FREED, agent_pb2.ATTEMPT_PHASE_REFUSED})


class Supervised:
    """Follows one attempt to its end, and reconnects to its supervisor when needed."""

    def __init__(
        self,
        place: AttemptDir,
        intent: Intent,
        on_change: Callable[[agent_pb2.AttemptStatus], None],
        verdict: Callable[[Intent, bool], Awaitable[str]],
        gpus: Gpus,
    ) -> None:
        """`verdict` is called when an attempt on an MPS server failed, with the intent and whether a signal ended it.

        It returns how the server failed if that is to blame. `gpus` are asked whether one is gone when the attempt has
        failed, and whether they are free when it has ended.
        """
        self.place = place
        self.intent = intent
        self.status = agent_pb2.AttemptStatus(
            job_id=intent.job_id, attempt=intent.attempt, phase=agent_pb2.ATTEMPT_PHASE_LAUNCHING
        )
        self._sdk: object = None  # the versions that the job's SDK has named
        self.imports_recorded = False  # whether the imports that the script had made by its first step are recorded
        self.settled = asyncio.Event()  # the status is one that the supervisor sent or left
        self._on_change = on_change
        self._verdict = verdict
        self._judging: asyncio.Task[None] | None = None
        self._mps_failure: str | None = None
        self._gpus = gpus
        self._autopsy: asyncio.Task[None] | None = None
        self._release: Release | None = None  # set when the attempt has ended
        self._memory = agent_pb2.AttemptStatus()  # only the fields about its GPU memory
        self._unused = agent_pb2.AttemptStatus()  # only the fields about its being unused
        self._loop = asyncio.get_running_loop()
        self._channel: ControlChannel | None = None
        self._identity: Identity | None = None
        self._move: dict[str, Any] = {}  # the last order to swap or resume; the supervisor ignores an old one
        self._stop_at = math.inf  # the loop's time at which the grace period ends
        self._fenced = False  # it was first asked to stop because its node ends
        self._recovery: asyncio.Task[None] | None = None
        self._closed = False
        lease = intent.failover_after_s, intent.leased_at
        self._backstop = Backstop(place, intent, *lease, lambda: self.is_over, lambda: self._identity, self._give_up)

    @property
    def key(self) -> AttemptKey:
        return self.intent.job_id, self.intent.attempt

    @property
    def grace_s(self) -> float:
        """The grace period of the attempt's job, in seconds."""
        return self.intent.grace_s

    @property
    def is_over(self) -> bool:
        return self.status.phase in _OVER

    @property
    def runs(self) -> bool:
        """Whether the attempt is running."""
        return self.status.phase == agent_pb2.ATTEMPT_PHASE_RUNNING

    async def supervise(self, connection: socket.socket) -> None:
        """Order the supervisor at the other end of this connection to launch the attempt."""
        _, channel = await self._loop.create_unix_connection(self._new_channel, sock=connection)
        channel.send(self.intent.to_json())
        self._backstop.renew(self.intent.leased_at)
        self._use(channel)

    def adopt(self) -> None:
        """Follow an attempt of an earlier agent, which may have renewed its lease until now."""
        self._backstop.renew(boottime())
        self.recover()

    def recover(self) -> None:
        """Start to find out whether the attempt runs, has ended or is lost, and follow it from there."""
        self._recovery = asyncio.create_task(self._recover(), name=f"recovery of {self.key[0]}.{self.key[1]}")

    async def close(self) -> None:
        """Stop following the attempt; a running one goes on."""
        self._closed = True
        await self._backstop.close()
        tasks = [task for task in (self._recovery, self._judging, self._autopsy) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._release is not None:
            await self._release.close()
        if self._channel is not None:
            self._channel.close()

    def forget(self) -> None:
        """Drop everything but the log of this attempt, which is over. Raises OSError."""
        self.place.forget()
        if self._release is not None:
            self._release.cancel()

    def stop(self, grace_s: float) -> None:
        """Ask the attempt to end within the grace period; a second request can only shorten the period."""
        self._request_stop(grace_s, fenced=False)

    def leave_alone(self, grace_s: float) -> None:
        """Ask the attempt to end within the grace period because its node ends, though no master may know of it."""
        self._request_stop(grace_s, fenced=True)

    def swap(self, grace_s: float, swaps: int) -> None:
        """Ask the attempt, which was swapped out `swaps` times, to swap out once more."""
        self._order_move({"do": "swap", "grace_s": grace_s, "swaps": swaps})

    def resume(self, swaps: int) -> None:
        """Ask the attempt, which was swapped out `swaps` times, to return to its GPU."""
        self._order_move({"do": "resume", "swaps": swaps})

    def _expect_move(self) -> None:
        """Have a swap that is ordered and not done enforced, unless a stop is: a supervisor that hangs does neither."""
        order = self._move
        if not (self.runs and order.get("do") == "swap" and order["swaps"] == self.status.swaps):
            self._backstop.expect_move(None)
        elif self._stop_at == math.inf:
            self._backstop.expect_move(self._loop.time() + order["grace_s"])

    def note_memory(self, seen: agent_pb2.AttemptStatus, tell: bool) -> None:
        """Note the attempt's GPU memory, the fields of `seen`; report it now if `tell`, else with the next change."""
        self._memory = seen
        if self.is_over or not tell:
            return
        status = agent_pb2.AttemptStatus()
        status.CopyFrom(self.status)
        for field in ("overran_gpu", "overran_bytes", "allowed_bytes"):
            status.ClearField(field)
        self._change(status)

    def note_unused(self, since: float, left_s: float) -> None:
        """Report since when the attempt is unused (Unix seconds, 0 if used), and the seconds left to it."""
        self._unused = agent_pb2.AttemptStatus(unused_since=since, unused_left_s=left_s)
        if not self.is_over:
            status = agent_pb2.AttemptStatus()
            status.CopyFrom(self.status)
            status.ClearField("unused_since")
            status.ClearField("unused_left_s")
            self._change(status)

    def whole_status(self) -> agent_pb2.AttemptStatus:
        """Return the status with the attempt's GPUs, which a master needs that does not know the attempt."""
        status = agent_pb2.AttemptStatus()
        status.CopyFrom(self.status)
        status.gpus[:] = [gpu.uuid for gpu in self.intent.gpus]
        return status

    def renew(self, at: float) -> None:
        """Renew the attempt's lease, if it has one: the master acknowledged what was sent at that CLOCK_BOOTTIME."""
        if self.intent.failover_after_s is not None:
            self._backstop.renew(at)
            if self._channel is not None:
                self._channel.send({"do": "lease", "at": at})

    def supervisor(self) -> Identity | None:
        """Return the supervisor's process; None if it is dead or unknown."""
        return self._identity if self._identity is not None and self._identity.is_alive() else None

    def pids(self) -> tuple[int, ...]:
        """Return the pids of the attempt's processes without its supervisor."""
        supervisor = self.supervisor()
        return () if supervisor is None else tuple(descendants(supervisor.pid))

    def apply(self, content: dict[str, Any]) -> None:
        """Apply a status that the supervisor sent or left on disk. Statuses after the end are ignored."""
        if self.is_over or self._autopsy is not None:
            return
        try:
            status = status_of(content)
            self._identity = Identity.from_json(content["supervisor"])
            self.imports_recorded = content.get("told") is True
            self._note_sdk(content.get("sdk"))
        except (ValueError, LookupError, TypeError) as error:
            log.error("event=bad-status job=%s attempt=%d error=%r", *self.key, str(error))
            return
        status.sharing, status.limited_by = self.intent.sharing, self.intent.limited_by
        if status.phase == agent_pb2.ATTEMPT_PHASE_EXITED and self._may_blame_server(status):
            failure = self._known_failure()
            if failure is None and not status.exit.stop_requested:
                self._judge(content, signalled=status.exit.signal > 0)
                return
            status.exit.mps_failure = failure or ""
        if status.phase == agent_pb2.ATTEMPT_PHASE_EXITED and (dirty := self._dirty_gpus()) is not None:
            status = freed(status, dirty)
        if _failed_by_itself(status) and self.intent.gpus and not status.exit.mps_failure:
            self._autopsy = asyncio.create_task(self._examine(status), name=f"autopsy of {self.key[0]}.{self.key[1]}")
            self.settled.set()  # adoption need not wait for the GPUs' answer
        else:
            self._change(status)

    def _note_sdk(self, sdk: object) -> None:
        """Log the versions of the job's SDK, once; it may be older or newer than this agent."""
        if sdk != self._sdk and isinstance(sdk, dict):
            self._sdk = sdk
            facts = sdk.get("version"), sdk.get("contract"), CONTRACT
            log.info("event=sdk job=%s attempt=%d version=%s contract=%s ours=%d", *self.key, *facts)

    async def _examine(self, status: agent_pb2.AttemptStatus) -> None:
        """Ask whether a GPU failed, before the attempt's failure is reported."""
        try:
            status.exit.lost_gpu = await self._gpus.gone([gpu.uuid for gpu in self.intent.gpus])
        except Exception:  # the failure is reported even if the driver's library or its process fails
            log.exception("event=autopsy-failed job=%s attempt=%d", *self.key)
        self._change(status)

    def fail(self, failure: str) -> None:
        """End the attempt at once because its MPS server has failed, so that it cannot use its GPU any more."""
        self._blame(failure)
        self.stop(0.0)

    def _may_blame_server(self, status: agent_pb2.AttemptStatus) -> bool:
        ended_well = status.exit.acknowledged or not (status.exit.exit_code or status.exit.signal)
        return self.intent.sharing == SharingMode.MPS and not ended_well and not status.lost

    def _known_failure(self) -> str | None:
        """Return how the MPS server failed; empty if it is not to blame, None if that is not known yet."""
        if self._mps_failure is None:
            with suppress(OSError, ValueError):
                self._mps_failure = self.place.mps_failure()
        return self._mps_failure

    def _judge(self, content: dict[str, Any], *, signalled: bool) -> None:
        """Find out whether the MPS server is to blame for the end, and only then report the end."""
        if self._judging is None:
            self._judging = asyncio.create_task(self._find_blame(content, signalled), name=f"verdict on {self.key}")

    async def _find_blame(self, content: dict[str, Any], signalled: bool) -> None:
        failure = ""
        try:
            failure = await self._verdict(self.intent, signalled)
        except Exception:  # the end is reported even if NVIDIA's control program fails or its output is unreadable
            log.exception("event=verdict-failed job=%s attempt=%d", *self.key)
        self._blame(failure)
        self.apply(content)

    def _blame(self, failure: str) -> None:
        self._mps_failure = failure
        try:
            self.place.record_mps_failure(failure)
        except OSError as error:  # a later agent asks again
            log.error("event=mps-failure-not-noted job=%s attempt=%d error=%r", *self.key, str(error))

    def _change(self, status: agent_pb2.AttemptStatus) -> None:
        if status.phase != self.status.phase:
            name = agent_pb2.AttemptPhase.Name(status.phase).removeprefix("ATTEMPT_PHASE_").lower()
            log.info("event=%s job=%s attempt=%d refusal=%r", name, *self.key, status.refusal)
        status.MergeFrom(self._memory)
        status.MergeFrom(self._unused)
        changed = status != self.status
        self.status = status
        self.settled.set()
        self._expect_move()
        if self.is_over:
            self._backstop.said_its_end()
        if changed:
            # Called later, so that this attempt is not in the middle of a change while `on_change` runs.
            self._loop.call_soon(self._on_change, status)
        if status.phase == agent_pb2.ATTEMPT_PHASE_EXITED and self._release is None and not self._closed:
            self._release = Release(self.key, allocation_of(self.intent), self._gpus, self._note_freed)

    def _note_freed(self, dirty: Mapping[str, str]) -> None:
        with suppress(FileNotFoundError):  # the directory was removed, so no later agent asks for the record
            self.place.record_freed(dict(dirty))
        self._change(freed(self.status, dirty))

    def _give_up(self) -> None:
        """Close the connection to a supervisor that was killed or cannot be found, so that recovery begins."""
        if self._channel is not None:
            self._channel.close()

    def _new_channel(self) -> ControlChannel:
        return ControlChannel(self.apply, self._lose_connection)

    def _request_stop(self, grace_s: float, *, fenced: bool) -> None:
        if self._stop_at == math.inf:
            self._fenced = fenced
        self._stop_at = min(self._stop_at, self._loop.time() + grace_s)
        self._backstop.expect_end(self._stop_at, self._fenced)
        self._send_stop(grace_s)

    def _send_stop(self, grace_s: float) -> None:
        if self._channel is not None:
            self._channel.send({"do": "stop", "grace_s": grace_s, "fenced": self._fenced})

    def _order_move(self, order: dict[str, Any]) -> None:
        self._move = order
        self._expect_move()
        if self._channel is not None:
            self._channel.send(order)

    def _use(self, channel: ControlChannel) -> None:
        self._channel = channel
        if self._move:
            channel.send(self._move)
        if self._stop_at < math.inf:
            self._send_stop(max(0.0, self._stop_at - self._loop.time()))

    def _lose_connection(self) -> None:
        self._channel = None
        if not self.is_over and not self._closed:
            self.recover()

    async def _recover(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self.is_over:
            try:
                if await self._try_to_recover():
                    return
            except (OSError, ValueError, LookupError) as error:
                log.error("event=recovery-failed job=%s attempt=%d error=%r", *self.key, str(error))
            except Exception:  # such as that there can be no thread; nothing else would find out how the attempt ended
                log.exception("event=recovery-failed job=%s attempt=%d", *self.key)
            await asyncio.sleep(_FIRST_PAUSE_S if self._backstop.is_due else pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try_to_recover(self) -> bool:
        """Make one step of recovery. Return whether the attempt is over or followed again."""
        found = await on_daemon_thread(partial(recovery.examine, self.place, self.intent, self._identity))
        match found:
            case recovery.EndedAttempt(content):
                self.apply(content)
            case recovery.Lost(supervisor):
                if await on_daemon_thread(partial(recovery.kill_survivors, self.place, self.intent, supervisor)):
                    return False
                log.error("event=exit-lost job=%s attempt=%d supervisor=%d", *self.key, supervisor.pid)
                patience_s = PATIENCE_S if self._backstop.is_due else recovery.PATIENCE_S
                self.apply(await on_daemon_thread(partial(recovery.record_loss, self.place, self.intent, patience_s)))
            case recovery.Alive(supervisor):
                self._identity = supervisor
                return await self._connect()
        return self.is_over

    async def _connect(self) -> bool:
        try:
            directory = os.open(self.place.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Through the descriptor, because a socket's path must not have more than 107 bytes.
            path = f"/proc/self/fd/{directory}/{self.place.control_socket.name}"
            _, channel = await self._loop.create_unix_connection(self._new_channel, path)
        except OSError:
            return False  # it has just ended, or has not begun to listen
        finally:
            os.close(directory)
        self._use(channel)
        return True

    def _dirty_gpus(self) -> dict[str, str] | None:
        """Return what an earlier agent has proven of the GPUs; None if nothing, so that it is proven anew."""
        try:
            return self.place.dirty_gpus()
        except (OSError, ValueError):
            return None


def _failed_by_itself(status: agent_pb2.AttemptStatus) -> bool:
    """Return whether the attempt's end would be charged to its job as a failure."""
    over = status.phase in (agent_pb2.ATTEMPT_PHASE_EXITED, agent_pb2.ATTEMPT_PHASE_FREED)
    return over and not status.exit.stop_requested and bool(status.exit.exit_code or status.exit.signal)
