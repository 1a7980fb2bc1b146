"""Interpreters that are held ready on this node, so that the next attempt of a job need not wait for its imports."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import psutil

from ebbtide_agent.attempts.spawner import Spawner
from ebbtide_agent.attempts.supervised import Supervised
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.supervisor.recipe import Recipe
from ebbtide_agent.supervisor.standby import request

log = logging.getLogger(__name__)

DEFAULT_SIZE = 2
IDLE_S = 300.0
# How long an attempt makes steps before a process is made ready for the next one: many are over by then.
SETTLED_S = 5.0
# So much of the node's memory stays free; one that has imported torch needs up to 0.5 GiB.
_SPARE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class _Ready:
    """A supervisor without an order yet, whose processes are held ready."""

    recipe: Recipe
    processes: int
    channel: socket.socket
    expiry: asyncio.TimerHandle


def _available_bytes() -> int:
    return int(psutil.virtual_memory().available)


class Standbys:
    """At most `size` processes, each held ready for one command line, and for `idle_s` at most.

    None is, before an attempt has made steps for `settled_s`.

    They end with this object: each has a supervisor that ends when its channel closes.
    """

    def __init__(
        self,
        spawner: Spawner,
        size: int = 0,
        idle_s: float = IDLE_S,
        available_bytes: Callable[[], int] = _available_bytes,
        settled_s: float = 0.0,
    ) -> None:
        self._spawner = spawner
        self._size = size
        self._settled_s = settled_s
        self._idle_s = idle_s
        self._available_bytes = available_bytes
        self._ready: list[_Ready] = []
        self._preparing: dict[Recipe, asyncio.Task[None]] = {}
        self._considered = WeakSet[Supervised]()

    def consider(self, attempt: Supervised) -> None:
        """Prepare for the attempt after this one, once, when it has told what it imports and then made steps for a
        while."""
        if attempt.told and not attempt.is_over and attempt not in self._considered:
            self._considered.add(attempt)
            asyncio.get_running_loop().call_later(self._settled_s, self._prepare_unless_over, attempt)

    def prepare(self, place: AttemptDir, intent: Intent) -> None:
        """Hold processes ready for an attempt like this one, if it may be, and if there is room."""
        recipe = Recipe.of(intent) if self._size else None
        if recipe is None or recipe in self._preparing:
            return
        for ready in [ready for ready in self._ready if not _is_open(ready.channel)]:
            self._end(ready)
        if any(ready.recipe == recipe for ready in self._ready):
            return
        # Whoever has a process per GPU may have another number of them next time, and waits for the last to be ready.
        processes = self._size if intent.ddp else 1
        self._preparing[recipe] = asyncio.create_task(self._prepare(recipe, place, processes), name="standby")

    async def take(self, intent: Intent) -> socket.socket | None:
        """A channel to a supervisor that has processes ready for this attempt; None if there is none."""
        recipe = Recipe.of(intent) if self._ready or self._preparing else None
        if recipe is None:
            return None
        # No longer than it takes to start processes.
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        for ready in [ready for ready in self._ready if ready.recipe == recipe]:
            self._ready.remove(ready)
            ready.expiry.cancel()
            if _is_open(ready.channel):
                log.info("event=standby-used job=%s attempt=%d", intent.job_id, intent.attempt)
                return ready.channel
            ready.channel.close()
        return None

    async def close(self) -> None:
        """End all that are held ready."""
        for task in list(self._preparing.values()):
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        for ready in list(self._ready):
            self._end(ready)

    async def _prepare(self, recipe: Recipe, place: AttemptDir, processes: int) -> None:
        try:
            told = place.told()
            if told is not None and told["modules"]:  # else nobody knows what to import, or it is nothing
                await self._start(recipe, told, processes)
        except (OSError, ValueError, LookupError) as error:
            log.warning("event=no-standby reason=%r", str(error))
        finally:
            # Here and not in a callback, which would come later: what was started may have died meanwhile.
            del self._preparing[recipe]

    async def _start(self, recipe: Recipe, told: dict[str, Any], wanted: int) -> None:
        if self._available_bytes() < _SPARE_BYTES:
            log.info("event=no-standby reason=memory")
            return
        while self._ready and sum(ready.processes for ready in self._ready) + wanted > self._size:
            self._end(self._ready[0])  # the oldest makes room
        channel = await self._spawner.spawn()
        channel.setblocking(False)
        line = json.dumps(request(recipe, told, wanted)).encode() + b"\n"
        await asyncio.get_running_loop().sock_sendall(channel, line)
        expiry = asyncio.get_running_loop().call_later(self._idle_s, self._expire, recipe)
        self._ready.append(_Ready(recipe, wanted, channel, expiry))
        log.info("event=standby processes=%d command=%s", wanted, recipe.command[:3])

    def _prepare_unless_over(self, attempt: Supervised) -> None:
        if not attempt.is_over:
            self.prepare(attempt.place, attempt.intent)

    def _expire(self, recipe: Recipe) -> None:
        for ready in [ready for ready in self._ready if ready.recipe == recipe]:
            log.info("event=standby-expired command=%s", recipe.command[:3])
            self._end(ready)

    def _end(self, ready: _Ready) -> None:
        self._ready.remove(ready)
        ready.expiry.cancel()
        ready.channel.close()


def _is_open(channel: socket.socket) -> bool:
    """Whether the supervisor at the other end lives: it says nothing before its order."""
    try:
        return channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
