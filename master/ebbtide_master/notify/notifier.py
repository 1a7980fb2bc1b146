"""Delivers notices, retries with growing pauses, and loses no notice if the master ends.

Only the line of the journal up to which each target was notified is stored. After a restart, notices are made again
from the journal behind it. So a notice may come twice, with the same key, and only one that was given up is missing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event, JournalRestored
from ebbtide_core.model.notice_rules import Moment, shown
from ebbtide_core.model.types import JobId
from ebbtide_core.views.notices import moment_of
from ebbtide_machine.threads import on_daemon_thread

from ebbtide_master.config.notify import NotifySettings
from ebbtide_master.notify.delivery import UndeliveredError, deliver
from ebbtide_master.notify.notice import Notice, notice_of
from ebbtide_master.store.journal import Store

MOST_WAITING: Final = 1000
"""Notices that wait for one target; the oldest ones are given up for new ones."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 600.0
GIVEN_UP_AFTER_S: Final = 24 * 3600.0
SAVED_S: Final = 1.0
"""Seconds after a delivery until the line up to which the targets were notified is stored."""
SAVED_ANYWAY_S: Final = 60.0
"""The same without a delivery, so that a target that is configured later gets no old notices."""
_ALL: Final = ""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Target:
    waiting: deque[Notice] = field(default_factory=deque)
    worker: asyncio.Task[None] | None = None


class Notifier:
    """Sends notices about jobs to targets. ``_notified`` has the last line of the journal that each was notified of."""

    def __init__(self, cluster: Cluster, store: Store, settings: NotifySettings) -> None:
        self._cluster = cluster
        self._store = store
        self.settings = settings
        self._journal = store.cluster_id
        self._targets: dict[str, _Target] = {}
        self._notified: dict[str, int] = dict(store.notified()) or {_ALL: store.last_sequence}
        self._seen = self._notified[_ALL]
        self._saving: asyncio.TimerHandle | None = None
        self._moment = 0.0  # time of the newest line; ``_said`` has the moments of all lines with this time
        self._said: set[tuple[JobId, Moment, str]] = set()

    def reconfigure(self, settings: NotifySettings) -> None:
        """Apply other settings from now on."""
        self.settings = settings

    # --- what happened ---

    def replayed(self, sequence: int, time: float, event: Event) -> None:
        """Take in a line of the journal that the starting master has just applied again.

        The lines after a restore have the numbers of those that were lost by it, of which there may have been notices.
        """
        if isinstance(event, JournalRestored):
            self._journal = f"{self._store.cluster_id}-{time * 1e6:.0f}"
        if sequence > min(self._notified.values()):
            self._consider(sequence, time, event)
            self._seen = max(self._seen, sequence)

    def recorded(self, time: float, events: Sequence[Event]) -> None:
        """Take in the last lines of the journal, which are new and already applied."""
        for sequence, event in enumerate(events, start=self._store.last_sequence - len(events) + 1):
            self._consider(sequence, time, event)
            self._seen = sequence
        self._start()
        self._save_within(SAVED_ANYWAY_S)

    def _consider(self, sequence: int, time: float, event: Event) -> None:
        try:
            self._take(sequence, time, event)
        except Exception:  # a missing notice must not end a master
            log.exception("notice=failed sequence=%d", sequence)

    def _take(self, sequence: int, time: float, event: Event) -> None:
        id: JobId | None = getattr(event, "job", None)
        job = self._cluster.job(id) if id is not None else None
        if job is None:
            return
        default = self.settings.users.get(job.user)
        rules = job.spec.notify or ((default,) if default is not None else ())
        if not rules or (found := moment_of(job, event, time)) is None:
            return
        moment, detail = found
        if not self._is_news(job.id, moment, detail, time):
            return
        for target in dict.fromkeys(rule.target for rule in rules if rule.wants(moment)):
            if sequence > self._notified.get(target, self._notified[_ALL]):
                notice = notice_of(self._journal, sequence, time, job, moment, detail)
                self._enqueue(target, notice)

    def _is_news(self, job: JobId, moment: Moment, detail: str, time: float) -> bool:
        """Whether the moment is new: several events of one time may be one moment, as a job's ends on several nodes."""
        if time != self._moment:
            self._moment, self._said = time, set()
        known = (job, moment, detail) in self._said
        self._said.add((job, moment, detail))
        return not known

    def _enqueue(self, target: str, notice: Notice) -> None:
        waiting = self._targets.setdefault(target, _Target()).waiting
        if len(waiting) >= MOST_WAITING:
            log.error("notice=given-up target=%s key=%s: too many wait", shown(target), waiting[0].key)
            waiting.popleft()
        waiting.append(notice)

    # --- delivery ---

    def run(self) -> None:
        """Start to deliver notices."""
        self._start()
        self._save_within(SAVED_S)

    async def close(self) -> None:
        """Stop; the next master delivers the notices that are left."""
        workers = [target.worker for target in self._targets.values() if target.worker is not None]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._saving is not None:
            self._saving.cancel()
        self._save()

    async def send(self, target: str, notice: Notice) -> str:
        """Try once to deliver ``notice``, and return the answer. Raises `UndeliveredError`, ValueError."""
        return await on_daemon_thread(partial(deliver, self.settings.address(target), notice, self.settings), "notice")

    def _start(self) -> None:
        for name, target in self._targets.items():
            if target.waiting and (target.worker is None or target.worker.done()):
                target.worker = asyncio.create_task(self._work(name, target), name=f"notices to {shown(name)}")

    async def _work(self, name: str, target: _Target) -> None:
        while target.waiting:
            notice = target.waiting[0]
            await self._deliver(name, notice)
            if target.waiting and target.waiting[0] is notice:
                target.waiting.popleft()
            self._save_within(SAVED_S)

    async def _deliver(self, name: str, notice: Notice) -> None:
        loop = asyncio.get_running_loop()
        give_up, pause_s = loop.time() + GIVEN_UP_AFTER_S, FIRST_PAUSE_S
        while True:
            try:
                await self.send(name, notice)
                return
            except UndeliveredError as error:
                if error.permanent or loop.time() > give_up:
                    log.error("notice=given-up target=%s key=%s: %s", shown(name), notice.key, error)
                    return
                log.warning("notice=waiting target=%s key=%s: %s", shown(name), notice.key, error)
            except Exception as error:  # noqa: BLE001 (the configuration has changed, or the master has a fault)
                log.error("notice=given-up target=%s key=%s: %s", shown(name), notice.key, error)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    # --- the line up to which each target was notified ---

    def _save_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._saving is not None and self._saving.when() <= loop.time() + seconds:
            return
        if self._saving is not None:
            self._saving.cancel()
        self._saving = loop.call_later(seconds, self._save)

    def _cursors(self) -> dict[str, int]:
        behind = {name: target.waiting[0].sequence - 1 for name, target in self._targets.items() if target.waiting}
        return {_ALL: self._seen, **behind}

    def _save(self) -> None:
        self._saving = None
        if (notified := self._cursors()) != self._notified:
            self._notified = notified
            self._store.note_notified(notified)
