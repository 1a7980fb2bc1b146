"""Keeps the environments of jobs in the vault, because they hold secrets; only the nodes that run the jobs get them.

The tasks of an array share one entry. A task's own params are no secret, and are part of its spec.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping

from ebbtide_core.model.types import JobId

from ebbtide_master.store.vault import EntryKind, Vault


class Environments:
    """Keeps environments in memory for launches; `keep` makes a noted one durable before the journal has the job."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._texts = vault.read(EntryKind.ENVIRONMENT)
        self._noted: dict[str, str | None] = {}

    def of(self, job: JobId) -> dict[str, str]:
        """Return the environment of the job, or of its array; empty for jobs whose environment is in the journal."""
        found: dict[str, str] = json.loads(self._texts.get(_owner(job), "{}"))
        return found

    def size_of(self, job: JobId) -> int:
        """Return the bytes of memory that the environment of the job, or of its array, takes here."""
        return len(self._texts.get(_owner(job), ""))

    def note(self, job: JobId, written: str) -> None:
        """Note that the job or array that is being submitted has this environment, as `written_env` returns it."""
        self._set(job, written or None)

    def note_again(self, job: JobId, old: JobId) -> None:
        """Note that the job or array is being submitted with the environment of the job ``old``."""
        self._set(job, self._texts.get(_owner(old)))

    async def keep(self) -> None:
        """Make the noted environments durable. Raises `StoreError`."""
        if self._noted:
            noted, self._noted = self._noted, {}
            await asyncio.wrap_future(self._vault.put(EntryKind.ENVIRONMENT, noted))

    async def forget_others(self, exists: Callable[[JobId], bool]) -> None:
        """Remove the environments of jobs that do not exist: they were forgotten, or the journal never had them."""
        await self.forget([id for id in map(JobId, self._texts) if not exists(id)])

    async def forget(self, jobs: Iterable[JobId]) -> None:
        """Remove the environments of ``jobs``, jobs or arrays that never run again."""
        gone: Collection[str] = [id for id in jobs if self._texts.pop(id, None) is not None]
        if gone:
            await asyncio.wrap_future(self._vault.put(EntryKind.ENVIRONMENT, dict.fromkeys(gone)))

    def _set(self, job: JobId, text: str | None) -> None:
        if text is not None:
            self._texts[job] = self._noted[job] = text
        elif self._texts.pop(job, None) is not None:  # left by a refused job, whose id the next job gets
            self._noted[job] = None


def written_env(env: Mapping[str, str]) -> str:
    """Return the environment as it is kept: a text of ASCII letters, empty if there are no variables."""
    return json.dumps(dict(env), separators=(",", ":")) if env else ""


def _owner(job: JobId) -> str:
    """Return the key of the job's environment: the id of the job, or of its array."""
    return job.partition(".")[0]
