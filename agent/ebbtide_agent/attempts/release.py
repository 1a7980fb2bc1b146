"""Waits for the proof that an ended attempt's GPUs are free; until then the attempt holds them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ebbtide_protos.v1.job_pb2 import GpuAllocation

from ebbtide_agent.contract.attempt_dir import AttemptKey

log = logging.getLogger(__name__)

_NOTE_AGAIN_S = 1.0
_ASK_AGAIN_S = 5.0


class Gpus(Protocol):
    """Answers attempts' questions about the GPUs of their node."""

    async def gone(self, uuids: Sequence[str]) -> str:
        """Return one of these GPUs that is gone; empty if none is."""
        ...

    async def prove_free(self, key: AttemptKey, allocation: tuple[GpuAllocation, ...]) -> Mapping[str, str]:
        """Wait until an ended attempt has left its GPUs. Return the dirty GPUs, which do not get free, with reasons."""
        ...


class Release:
    """Waits for the proof that one attempt's GPUs are free, from construction on, and notes it.

    If the agent ends before the proof, the next agent waits for it anew.
    """

    def __init__(
        self,
        key: AttemptKey,
        allocation: tuple[GpuAllocation, ...],
        gpus: Gpus,
        note: Callable[[Mapping[str, str]], None],
    ) -> None:
        """`note` is called with the dirty GPUs and their reasons, again while it raises OSError."""
        self._key = key
        self._allocation = allocation
        self._gpus = gpus
        self._note = note
        self._task = asyncio.create_task(self._run(), name=f"release of {key[0]}.{key[1]}")

    def cancel(self) -> None:
        """Stop waiting."""
        self._task.cancel()

    async def close(self) -> None:
        """Stop waiting, and return when the task has ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        dirty = await self._proof()
        while True:
            try:
                return self._note(dirty)
            except OSError as error:  # such as a full disk; without the note the attempt would hold its GPUs for ever
                log.error("event=mark-failed job=%s attempt=%d reason=%r", *self._key, str(error))
            await asyncio.sleep(_NOTE_AGAIN_S)

    async def _proof(self) -> Mapping[str, str]:
        while True:
            try:
                return await self._gpus.prove_free(self._key, self._allocation)
            except Exception:  # a failure of the driver's library or its process must not hold the GPUs for ever
                log.exception("event=freeing-failed job=%s attempt=%d", *self._key)
            await asyncio.sleep(_ASK_AGAIN_S)
