"""The last phase of an attempt's life on its node: it has ended, and holds its GPUs until they are proven free."""

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
    """What attempts ask the GPUs of their node."""

    async def gone(self, uuids: Sequence[str]) -> str:
        """Name one of these GPUs that is gone, if one is."""
        ...

    async def prove_free(self, key: AttemptKey, allocation: tuple[GpuAllocation, ...]) -> Mapping[str, str]:
        """Wait until the GPUs are free of an attempt that has ended; return those that do not get free, and why."""
        ...


class Release:
    """Waits for the proof that the GPUs of one attempt are free, and notes it. It begins as soon as it is made.

    An agent that ends before the proof leaves it to the next one.
    """

    def __init__(
        self,
        key: AttemptKey,
        allocation: tuple[GpuAllocation, ...],
        gpus: Gpus,
        note: Callable[[Mapping[str, str]], None],
    ) -> None:
        """`note` is given the dirty GPUs with the reasons, once it takes them; it may raise OSError."""
        self._key = key
        self._allocation = allocation
        self._gpus = gpus
        self._note = note
        self._task = asyncio.create_task(self._run(), name=f"release of {key[0]}.{key[1]}")

    def cancel(self) -> None:
        """Wait for nothing any more."""
        self._task.cancel()

    async def close(self) -> None:
        """Do the same, and return when nothing goes on."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        dirty = await self._proof()
        while True:
            try:
                return self._note(dirty)
            except OSError as error:  # as on a full disk: without the note the attempt would hold its GPUs for ever
                log.error("event=mark-failed job=%s attempt=%d reason=%r", *self._key, str(error))
            await asyncio.sleep(_NOTE_AGAIN_S)

    async def _proof(self) -> Mapping[str, str]:
        while True:
            try:
                return await self._gpus.prove_free(self._key, self._allocation)
            except Exception:  # of a driver's library, or of its process: unproven, the GPUs would be held for ever
                log.exception("event=freeing-failed job=%s attempt=%d", *self._key)
            await asyncio.sleep(_ASK_AGAIN_S)
