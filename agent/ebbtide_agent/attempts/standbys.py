"""Keeps standby interpreters on this node, so that the next attempt of a job need not wait for its imports."""

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
from ebbtide_agent.supervisor.launching.recipe import Recipe
from ebbtide_agent.supervisor.launching.standby import request

log = logging.getLogger(__name__)

DEFAULT_SIZE = 2
IDLE_S = 300.0
# How long an attempt makes steps before a standby is started for the next one; many attempts end earlier.
SETTLED_S = 5.0
# No standby starts with less free memory than this; one that has imported torch needs up to 0.5 GiB.
_SPARE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class _Ready:
    """A supervisor without an order yet, with its standby processes."""

    recipe: Recipe
    processes: int
    channel: socket.socket
    expiry: asyncio.TimerHandle


def _available_bytes() -> int:
    return int(psutil.virtual_memory().available)


class Standbys:
    """Keeps at most `size` standby processes, each for one command line and for at most `idle_s`.

    They are started once an attempt has made steps for `settled_s`, or when it stops and its job goes on. They end with
    this object, because the supervisor of each ends when its channel closes.
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
        """Prepare once for the attempt after this one, `settled_s` after this one has reported its imports."""
        if attempt.imports_recorded and not attempt.is_over and attempt not in self._considered:
            self._considered.add(attempt)
            asyncio.get_running_loop().call_later(self._settled_s, self._prepare_unless_over, attempt)

    def prepare(self, attempt: Supervised) -> None:
        """Start standby processes for an attempt like this one, if it allows them and there is memory."""
        recipe = Recipe.of(attempt.intent) if self._size else None
        if recipe is None or recipe in self._preparing:
            return
        for ready in [ready for ready in self._ready if not _is_open(ready.channel)]:
            self._end(ready)
        if any(ready.recipe == recipe for ready in self._ready):
            return
        # A DDP job may have another number of processes next time, and waits for the last of them to be ready.
        processes = self._size if attempt.intent.ddp else 1
        self._preparing[recipe] = asyncio.create_task(self._prepare(recipe, attempt.place, processes), name="standby")

    async def take(self, attempt: Supervised) -> socket.socket | None:
        """Return a channel to a supervisor that has standby processes for this attempt; None if there is none."""
        recipe = Recipe.of(attempt.intent) if self._ready or self._preparing else None
        if recipe is None:
            return None
        # This waits no longer than starting processes takes.
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        for ready in [ready for ready in self._ready if ready.recipe == recipe]:
            self._ready.remove(ready)
            ready.expiry.cancel()
            if _is_open(ready.channel):
                log.info("event=standby-used job=%s attempt=%d", *attempt.key)
                return ready.channel
            ready.channel.close()
        return None

    async def close(self) -> None:
        """End all standby processes."""
        for task in list(self._preparing.values()):
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        for ready in list(self._ready):
            self._end(ready)

    async def _prepare(self, recipe: Recipe, place: AttemptDir, processes: int) -> None:
        try:
            imports = place.imports()
            if imports is not None and imports["modules"]:  # else the imports are unknown, or there are none
                await self._start(recipe, imports, processes)
        except (OSError, ValueError, LookupError) as error:
            log.warning("event=no-standby reason=%r", str(error))
        finally:
            # Here and not in a done callback, which comes later: the standby could have died meanwhile.
            del self._preparing[recipe]

    async def _start(self, recipe: Recipe, imports: dict[str, Any], wanted: int) -> None:
        if self._available_bytes() < _SPARE_BYTES:
            log.info("event=no-standby reason=memory")
            return
        while self._ready and sum(ready.processes for ready in self._ready) + wanted > self._size:
            self._end(self._ready[0])  # the oldest makes room
        channel = await self._spawner.spawn()
        channel.setblocking(False)
        line = json.dumps(request(recipe, imports, wanted)).encode() + b"\n"
        await asyncio.get_running_loop().sock_sendall(channel, line)
        expiry = asyncio.get_running_loop().call_later(self._idle_s, self._expire, recipe)
        self._ready.append(_Ready(recipe, wanted, channel, expiry))
        log.info("event=standby processes=%d command=%s", wanted, recipe.command[:3])

    def _prepare_unless_over(self, attempt: Supervised) -> None:
        if not attempt.is_over:
            self.prepare(attempt)

    def _expire(self, recipe: Recipe) -> None:
        for ready in [ready for ready in self._ready if ready.recipe == recipe]:
            log.info("event=standby-expired command=%s", recipe.command[:3])
            self._end(ready)

    def _end(self, ready: _Ready) -> None:
        self._ready.remove(ready)
        ready.expiry.cancel()
        ready.channel.close()


def _is_open(channel: socket.socket) -> bool:
    """Return whether the supervisor at the other end lives; it sends nothing before its order."""
    try:
        return channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
