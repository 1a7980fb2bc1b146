"""Shows the configuration, and reads it again while the master serves (``ebb master reload``, SIGHUP)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.types import WHOLE
from ebbtide_protos.v1 import user_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.backup.backups import backups
from ebbtide_master.config.file import Config
from ebbtide_master.config.shown import shown
from ebbtide_master.config.table import ConfigError
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import RefusedError

POOLS: Final = ("pools", "gpu_pool", "cpu_pool")
"""Settings that need a restart, because a pool's policy has queues of its own that are made when a master starts."""
LIVE: Final = ("log_rules", "notify")
"""The other fields of the configuration that take effect without a restart."""
_NAMES: Final = {"idle_s": "sessions", "bounds": "limits", "metrics_port": "metrics"}
"""The names of sections in the file that differ from the field's name."""
MOST_SETTINGS: Final = 2000
MOST_QUOTAS: Final = 1000
_DERIVED: Final = ("settings", "names_default_pool")

log = logging.getLogger(__name__)


class ReloadService:
    """Reads the file with ``read`` and applies it. ``config`` is the configuration that applies at first."""

    def __init__(self, master: Context, read: Callable[[], Config], config: Config) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._sessions = master.sessions
        self._notifier = master.notifier
        self._store = master.store
        self._read = read
        self._config = config
        self._alone = asyncio.Lock()

    async def Reload(self, request: user_pb2.ReloadRequest, context: Any) -> user_pb2.ReloadReply:
        """Read the configuration again."""
        try:
            return await self.reload(caller().user)
        except ConfigError as error:
            raise RefusedError(Refusal(RefusalKind.INVALID, f"{error} (nothing has changed)")) from None

    async def reload(self, user: str = "") -> user_pb2.ReloadReply:
        """Apply the file; return what changed, and what needs a restart. Raises `ConfigError`, with nothing changed."""
        async with self._alone:
            wanted = await asyncio.to_thread(self._read)
            settings, changed, later = self._differences(wanted)

            def facts(cluster: Cluster) -> list[Event]:
                cluster.reconfigure(settings, self._clock.now())
                return [e.ConfigurationRead(tuple(changed), user)] if changed else []

            await self._loop.tell(facts, lambda _: None)
            self._sessions.set_log_rules(wanted.log_rules)
            self._notifier.reconfigure(wanted.notify)
            self._config = replace(self._config, log_rules=wanted.log_rules, notify=wanted.notify)
            log.info("configuration=read changed=%s restart=%s", ",".join(changed), ",".join(later))
            return user_pb2.ReloadReply(changed=changed, needs_restart=later)

    def _differences(self, wanted: Config) -> tuple[Settings, list[str], list[str]]:
        """Return the settings that a reload would apply, the names of changed ones, and what needs a restart."""
        settings, changed, later = _compared(self._loop.settings, wanted.settings)
        for name in (field.name for field in fields(Config) if field.name not in _DERIVED):
            if getattr(wanted, name) != getattr(self._config, name):
                (changed if name in LIVE else later).append(_NAMES.get(name, name))
        return settings, changed, later

    async def ShowSettings(self, request: user_pb2.ShowSettingsRequest, context: Any) -> user_pb2.ShowSettingsReply:
        """Show what holds, what the file says, the quotas in use, and how the journal is."""
        reply = user_pb2.ShowSettingsReply(journal=await asyncio.to_thread(self._journal))
        reply.quotas.extend(await self._loop.ask(quotas_in_use))
        holds, written = shown(replace(self._config, settings=self._loop.settings)), dict[str, str]()
        try:
            wanted = await asyncio.to_thread(self._read)
        except ConfigError as error:
            reply.problem = str(error)
        else:
            _, changed, later = self._differences(wanted)
            reply.changed.extend(changed)
            reply.needs_restart.extend(later)
            written = shown(wanted)
        for name in sorted(holds.keys() | written.keys())[:MOST_SETTINGS]:
            reply.settings.append(user_pb2.Setting(name=name, value=holds.get(name), in_file=written.get(name)))
        return reply

    def _journal(self) -> user_pb2.JournalHealth:
        """Return how the journal is. Blocks."""
        store, is_file = self._store, not self._config.journal.store
        newest = next(backups(store.folder), None) if is_file else None
        last = next(store.newest(store.last_sequence + 1, limit=1), None)
        return user_pb2.JournalHealth(
            kind="file" if is_file else "PostgreSQL",
            last_sequence=store.last_sequence,
            last_time=0.0 if last is None else last.time,
            damaged=len(store.damage),
            has_room=store.has_room(),
            restored=store.restored,
            backed_up=None if newest is None else newest.taken,
            standbys=[user_pb2.StandbyMaster(name=one.name, heard_s=one.heard_s) for one in store.standbys()],
        )

    async def on_signal(self) -> None:
        """Do the same as `reload`, and log an error."""
        try:
            await self.reload()
        except ConfigError as error:
            log.error("configuration=wrong nothing has changed: %s", error)


def quotas_in_use(cluster: Cluster) -> list[user_pb2.UserQuota]:
    """Return what each user with a quota has of it."""
    gates = cluster.state.gates
    found = []
    for name in sorted(gates.user_quotas)[:MOST_QUOTAS]:
        used, quota = gates.user_quotas[name], gates.quotas.of(name)
        gpus = None if quota.gpus is None else quota.gpus / WHOLE
        of_user = user_pb2.UserQuota(user=name, gpus_used=used.cap.parts / WHOLE, gpus=gpus, queued=quota.queued)
        of_user.unfinished = used.unfinished
        found.append(of_user)
    return found


def _compared(old: Settings, new: Settings) -> tuple[Settings, list[str], list[str]]:
    """Return the settings to apply, the names of changed ones, and the names of those that need a restart."""
    differ = [field.name for field in fields(Settings) if getattr(old, field.name) != getattr(new, field.name)]
    pools = [name for name in differ if name in POOLS]
    later = pools if "pools" in pools else []
    kept = {name: getattr(old, name) for name in later}
    return replace(new, **kept), [_NAMES.get(name, name) for name in differ if name not in later], later
