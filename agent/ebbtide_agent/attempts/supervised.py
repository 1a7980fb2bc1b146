"""One attempt as the agent sees it: its last status, and the connection to the supervisor that has the next one."""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ebbtide_protos.process import Identity
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.attempts import recovery
from ebbtide_agent.attempts.backstop import PATIENCE_S, Backstop
from ebbtide_agent.attempts.control_channel import ControlChannel
from ebbtide_agent.attempts.release import Gpus, Release
from ebbtide_agent.attempts.translation import allocation_of, freed, status_of
from ebbtide_agent.blocking_calls import in_thread
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.mps.sharing import Way
from ebbtide_agent.processes.process_tree import descendants

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_OVER = frozenset({agent_pb2.ATTEMPT_PHASE_EXITED, agent_pb2.ATTEMPT_PHASE_FREED, agent_pb2.ATTEMPT_PHASE_REFUSED})


class Supervised:
    """Follows one attempt to its end, through any number of connections."""

    def __init__(
        self,
        place: AttemptDir,
        intent: Intent,
        on_change: Callable[[agent_pb2.AttemptStatus], None],
        verdict: Callable[[Intent, bool], Awaitable[str]],
        gpus: Gpus,
    ) -> None:
        """`verdict` is asked about a client of an MPS server that did not end well, and told whether a signal ended it.

        It says how the server failed if that is to blame. `gpus` are asked whether one is gone when the attempt has
        failed, and whether they are free when it has ended.
        """
        self.place = place
        self.intent = intent
        self.status = agent_pb2.AttemptStatus(
            job_id=intent.job_id, attempt=intent.attempt, phase=agent_pb2.ATTEMPT_PHASE_LAUNCHING
        )
        self.told = False  # what its script had imported by its first step is known
        self.settled = asyncio.Event()  # the status is what the supervisor, or what it left, says
        self._on_change = on_change
        self._verdict = verdict
        self._judging: asyncio.Task[None] | None = None
        self._mps_failure: str | None = None
        self._gpus = gpus
        self._autopsy: asyncio.Task[None] | None = None
        self._release: Release | None = None  # once it has ended, until its GPUs are proven free
        self._memory = agent_pb2.AttemptStatus()  # what was seen of its GPU memory, and nothing else
        self._unused = agent_pb2.AttemptStatus()  # since when nobody uses it, and nothing else
        self._loop = asyncio.get_running_loop()
        self._channel: ControlChannel | None = None
        self._identity: Identity | None = None
        self._move: dict[str, Any] = {}  # the last order to swap or resume; the supervisor knows whether it is old
        self._stop_at = math.inf  # the loop's time at which the grace period ends
        self._recovery: asyncio.Task[None] | None = None
        self._closed = False
        self._backstop = Backstop(place, intent, lambda: self.is_over, lambda: self._identity, self._give_up)

    @property
    def key(self) -> tuple[str, int]:
        return self.intent.job_id, self.intent.attempt

    @property
    def is_over(self) -> bool:
        return self.status.phase in _OVER

    @property
    def runs(self) -> bool:
        """Whether it has processes that compute."""
        return self.status.phase == agent_pb2.ATTEMPT_PHASE_RUNNING

    async def supervise(self, connection: socket.socket) -> None:
        """Order the supervisor at the other end of this connection to launch the attempt."""
        _, channel = await self._loop.create_unix_connection(self._new_channel, sock=connection)
        channel.send(self.intent.to_json())
        self._backstop.renew(self.intent.leased_at)
        self._use(channel)

    def recover(self) -> None:
        """Find out how the attempt stands, and follow it from there."""
        self._recovery = asyncio.create_task(self._recover(), name=f"recovery of {self.key[0]}.{self.key[1]}")

    async def close(self) -> None:
        """Let go of the attempt; a running one goes on."""
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
        """Drop everything of the attempt, which is over, but its log. Raises OSError."""
        self.place.forget()
        if self._release is not None:
            self._release.cancel()

    def stop(self, grace_s: float) -> None:
        """Ask the attempt to end within the grace period; a second request can only shorten it."""
        self._stop_at = min(self._stop_at, self._loop.time() + grace_s)
        self._backstop.expect_end(self._stop_at)
        if self._channel is not None:
            self._channel.send({"do": "stop", "grace_s": grace_s})

    def swap(self, grace_s: float, swaps: int) -> None:
        """Ask the attempt, which has left its GPU so often, to leave it once more."""
        self._order_move({"do": "swap", "grace_s": grace_s, "swaps": swaps})

    def resume(self, swaps: int) -> None:
        """Ask the attempt, which has left its GPU so often, to come back."""
        self._order_move({"do": "resume", "swaps": swaps})

    def note_memory(self, seen: agent_pb2.AttemptStatus, tell: bool) -> None:
        """Note what was seen of its GPU memory, the fields of `seen`; it is told now, or with what is told next."""
        self._memory = seen
        if self.is_over or not tell:
            return
        status = agent_pb2.AttemptStatus()
        status.CopyFrom(self.status)
        for field in ("overran_gpu", "overran_bytes", "allowed_bytes"):
            status.ClearField(field)
        self._change(status)

    def note_unused(self, since: float, left_s: float) -> None:
        """Tell since when nobody uses it, 0 if somebody does."""
        self._unused = agent_pb2.AttemptStatus(unused_since=since, unused_left_s=left_s)
        if not self.is_over:
            status = agent_pb2.AttemptStatus()
            status.CopyFrom(self.status)
            status.ClearField("unused_since")
            status.ClearField("unused_left_s")
            self._change(status)

    def whole_status(self) -> agent_pb2.AttemptStatus:
        """Its status, with the GPUs that it was launched on: a master that does not know it has to know them."""
        status = agent_pb2.AttemptStatus()
        status.CopyFrom(self.status)
        status.gpus[:] = [gpu.uuid for gpu in self.intent.gpus]
        return status

    def renew(self, at: float) -> None:
        """Tell the attempt, if it has a lease, when was sent what the master acknowledged last (CLOCK_BOOTTIME)."""
        if self.intent.failover_after_s is not None:
            self._backstop.renew(at)
            if self._channel is not None:
                self._channel.send({"do": "lease", "at": at})

    def supervisor(self) -> Identity | None:
        """The supervisor's process, as long as it lives."""
        return self._identity if self._identity is not None and self._identity.is_alive() else None

    def pids(self) -> tuple[int, ...]:
        """Its live processes, its supervisor excepted."""
        supervisor = self.supervisor()
        return () if supervisor is None else tuple(descendants(supervisor.pid))

    def apply(self, content: dict[str, Any]) -> None:
        """Take over a status of the supervisor, or one that it left. What comes after the end is ignored."""
        if self.is_over or self._autopsy is not None:
            return
        try:
            status = status_of(content)
            self._identity = Identity.from_json(content["supervisor"])
            self.told = content.get("told") is True
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
            self.settled.set()  # nobody needs to wait for the GPUs' answer
        else:
            self._change(status)

    async def _examine(self, status: agent_pb2.AttemptStatus) -> None:
        """Before anybody hears that it failed: was it a GPU that failed?"""
        try:
            status.exit.lost_gpu = await self._gpus.gone([gpu.uuid for gpu in self.intent.gpus])
        except Exception:  # of a driver's library, or of its process: that the job has failed is told all the same
            log.exception("event=autopsy-failed job=%s attempt=%d", *self.key)
        self._change(status)

    def fail(self, failure: str) -> None:
        """End the attempt at once, whose MPS server has failed: its GPU can do nothing more for it."""
        self._blame(failure)
        self.stop(0.0)

    def _may_blame_server(self, status: agent_pb2.AttemptStatus) -> bool:
        ended_well = status.exit.acknowledged or not (status.exit.exit_code or status.exit.signal)
        return self.intent.sharing == Way.MPS and not ended_well and not status.lost

    def _known_failure(self) -> str | None:
        """What is known of its MPS server's failure; None if nobody has asked."""
        if self._mps_failure is None:
            with suppress(OSError, ValueError):
                self._mps_failure = self.place.mps_failure()
        return self._mps_failure

    def _judge(self, content: dict[str, Any], *, signalled: bool) -> None:
        """Find out whether its MPS server is to blame for its end, and only then say that it has ended."""
        if self._judging is None:
            self._judging = asyncio.create_task(self._find_blame(content, signalled), name=f"verdict on {self.key}")

    async def _find_blame(self, content: dict[str, Any], signalled: bool) -> None:
        failure = ""
        try:
            failure = await self._verdict(self.intent, signalled)
        except Exception:  # of NVIDIA's control program, or of what it says: the end is told all the same
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
        if self.is_over:
            self._backstop.said_its_end()
        if changed:
            # Not from within here: what the caller does then is no business of this attempt's.
            self._loop.call_soon(self._on_change, status)
        if status.phase == agent_pb2.ATTEMPT_PHASE_EXITED and self._release is None and not self._closed:
            self._release = Release(self.key, allocation_of(self.intent), self._gpus, self._note_freed)

    def _note_freed(self, dirty: Mapping[str, str]) -> None:
        self.place.record_freed(dict(dirty))
        self._change(freed(self.status, dirty))

    def _give_up(self) -> None:
        """Its supervisor was killed, or has not said who it is: what it left is looked at, or that it never began."""
        if self._channel is not None:
            self._channel.close()

    def _new_channel(self) -> ControlChannel:
        return ControlChannel(self.apply, self._lose_connection)

    def _order_move(self, order: dict[str, Any]) -> None:
        self._move = order
        if self._channel is not None:
            self._channel.send(order)

    def _use(self, channel: ControlChannel) -> None:
        self._channel = channel
        if self._move:
            channel.send(self._move)
        if self._stop_at < math.inf:
            channel.send({"do": "stop", "grace_s": max(0.0, self._stop_at - self._loop.time())})

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
            await asyncio.sleep(_FIRST_PAUSE_S if self._backstop.is_due else pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try_to_recover(self) -> bool:
        """One step; True when the attempt is over or followed again."""
        found = await in_thread(partial(recovery.examine, self.place, self.intent, self._identity))
        match found:
            case recovery.EndedAttempt(content):
                self.apply(content)
            case recovery.Lost(supervisor):
                if await in_thread(partial(recovery.kill_survivors, self.place, self.intent, supervisor)):
                    return False
                log.error("event=exit-lost job=%s attempt=%d supervisor=%d", *self.key, supervisor.pid)
                patience_s = PATIENCE_S if self._backstop.is_due else recovery.PATIENCE_S
                self.apply(await in_thread(partial(recovery.record_loss, self.place, self.intent, patience_s)))
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
        """What an agent before this one has proven of the GPUs; None if nothing, so that it is proven anew."""
        try:
            return self.place.dirty_gpus()
        except (OSError, ValueError):
            return None


def _failed_by_itself(status: agent_pb2.AttemptStatus) -> bool:
    """Whether it has come to an end that would be charged to its job."""
    over = status.phase in (agent_pb2.ATTEMPT_PHASE_EXITED, agent_pb2.ATTEMPT_PHASE_FREED)
    return over and not status.exit.stop_requested and bool(status.exit.exit_code or status.exit.signal)
