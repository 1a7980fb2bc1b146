"""Every attempt on this node: launches, stops, adopts and forgets them."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ebbtide_protos.v1 import agent_pb2, job_pb2

from ebbtide_agent.accounts.accounts import MIN_UID, Account, NoAccount, login_shell
from ebbtide_agent.accounts.lookup import account_of, owner_of
from ebbtide_agent.attempts import recovery, survivors
from ebbtide_agent.attempts.orphans import Orphans
from ebbtide_agent.attempts.recorded import read_intent, read_intents
from ebbtide_agent.attempts.release import Gpus
from ebbtide_agent.attempts.spawner import Spawner
from ebbtide_agent.attempts.standbys import Standbys
from ebbtide_agent.attempts.supervised import Supervised
from ebbtide_agent.attempts.translation import allocation_of, in_workdir, intent_of, refusal
from ebbtide_agent.blocking_calls import apart
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey, attempts_dir, is_job_id, lock_path
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.files.copying import Copy, NotCopied
from ebbtide_agent.files.exchange import Exchange, read_as_owner
from ebbtide_agent.files.path_checks import is_folder
from ebbtide_agent.files.required import ANSWER_S, missing
from ebbtide_agent.files.snapshots import NotPlaced, Snapshots
from ebbtide_agent.helper.asking import ask
from ebbtide_agent.logs import log_window
from ebbtide_agent.logs.log_edges import Edge
from ebbtide_agent.mps.sharing import NotShared, Sharing
from ebbtide_agent.network import ANY, Network
from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.supervisor import lease

log = logging.getLogger(__name__)

# How many attempts get their checkpoints from other nodes at once; others wait.
_COPIES = 2

# How long the start waits for what adopted supervisors have to say; one may be reading a large checkpoint just then.
_ADOPTION_S = 5.0


def _ignore(status: agent_pb2.AttemptStatus) -> None:
    pass


class Attempts:
    """Every attempt on this node, each under a supervisor of its own that outlives this object and its process.

    `on_change` is called on the event loop with the whole status after every change. `cluster_id` is part of the
    checkpoints' paths and must be set before the first launch. `warm` is how many processes may be held ready,
    not before an attempt has made steps for `settled_s`. `sharing` knows how those on shares of GPUs share them.
    As root, it starts jobs of other accounts as these, but for accounts below `min_uid`.
    """

    def __init__(
        self,
        node_dir: Path,
        checkpoint_root: Path,
        gpus: Gpus,
        cluster_id: str = "",
        on_change: Callable[[agent_pb2.AttemptStatus], None] = _ignore,
        fake_gpu_dir: Path | None = None,
        network: Network = ANY,
        warm: int = 0,
        settled_s: float = 0.0,
        sharing: Sharing | None = None,
        min_uid: int = MIN_UID,
    ) -> None:
        # Processes are recognised by these paths, so there must be one way only to write them.
        self._node_dir = node_dir.resolve()
        self._checkpoint_root = checkpoint_root.resolve()
        self._fake_gpu_dir = None if fake_gpu_dir is None else fake_gpu_dir.resolve()
        self._gpus = gpus
        self._network = network
        self.cluster_id = cluster_id
        self._on_change = on_change
        self._spawner = Spawner()
        self._standbys = Standbys(self._spawner, warm)
        self._settled_s = settled_s
        self._min_uid = min_uid
        self._sharing = sharing or Sharing(node_dir)
        self._sharing.fail = self._fail
        self._attempts: dict[AttemptKey, Supervised] = {}
        self.exchange = Exchange()
        self._snapshots = Snapshots(self._node_dir, self.exchange)
        self._copying = asyncio.Semaphore(_COPIES)
        self._copies: dict[AttemptKey, asyncio.Task[None]] = {}  # attempts that wait for what they need
        self._orphans = Orphans(self._node_dir, gpus, on_change)
        self._renewed = 0.0  # when was sent what the master acknowledged last (CLOCK_BOOTTIME)
        self._collecting: asyncio.Task[None] | None = None
        self._unaccounted = frozenset[AttemptKey]()  # attempts that have processes here, but no directory any more

    async def start(self) -> None:
        """Get ready to launch, and adopt every attempt that is on disk. Raises OSError or TimeoutError."""
        attempts_dir(self._node_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_path(self._node_dir, "").parent.mkdir(mode=0o700, exist_ok=True)
        await self._spawner.start()
        await self._sharing.start()
        for place, intent in await asyncio.to_thread(read_intents, self._node_dir):
            self._adopt(place, intent)
        adopted = [asyncio.ensure_future(attempt.settled.wait()) for attempt in self._attempts.values()]
        if adopted:
            _, pending = await asyncio.wait(adopted, timeout=_ADOPTION_S)
            for waiter in pending:
                waiter.cancel()
        try:
            await self._look_for_unaccounted()
        except Exception:
            log.exception("event=orphans-unknown")
        self._sharing.watch()
        collecting = self._snapshots.collect(self._jobs_here, self._workdirs_of_accounts)
        self._collecting = asyncio.create_task(collecting, name="what snapshots have left")

    async def close(self) -> None:
        """Let go of them; running attempts go on."""
        copies = [*self._copies.values(), *([] if self._collecting is None else [self._collecting])]
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        await asyncio.gather(*(attempt.close() for attempt in self._attempts.values()))
        await self._orphans.close()
        await self._sharing.close()
        await self._standbys.close()
        await self._spawner.close()

    async def launch(self, order: agent_pb2.Launch) -> None:
        """Start the attempt; one that was started already is left as it is, and its status is reported again."""
        key = (order.job_id, order.attempt)
        known = self._attempts.get(key)
        if (status := self._orphans.status(key) if known is None else known.status) is not None:
            self._on_change(status)
            return
        if key in self._copies:
            return
        try:
            intent = self._intent_of(order)
        except ValueError as error:
            self._refuse(order, str(error))
            return
        place = AttemptDir.of(self._node_dir, order.job_id, order.attempt)
        if place.path.exists():
            self._launch_again(order, place)
            return
        try:
            account = await account_of(order, self._min_uid)
        except NoAccount as error:
            self._refuse(order, str(error), agent_pb2.REFUSAL_CAUSE_NO_ACCOUNT)
            return
        intent = replace(intent, account=account)
        if order.spec.needs.require_paths and (reason := await missing(order.spec.needs.require_paths, account)):
            self._refuse(order, reason, agent_pb2.REFUSAL_CAUSE_NO_PATH)
        elif order.move_checkpoint or order.spec.HasField("snapshot"):
            # Not within the order: the next one may be to stop.
            self._copies[key] = asyncio.create_task(self._launch_with_copy(order, place, intent), name=f"copy {key}")
        else:
            await self._launch_or_refuse(order, place, intent)

    async def stop(self, job_id: str, attempt: int, grace_s: float, goes_on: bool = False) -> None:
        """Ask the attempt to end within the grace period; a second request can only shorten it.

        If the job `goes_on` later, its next process may do its imports while this one saves.
        """
        known = self._attempts.get((job_id, attempt))
        if known is not None:
            if goes_on and not known.is_over:
                self._standbys.prepare(known.place, known.intent)
            log.info("event=stop job=%s attempt=%d grace_s=%g", job_id, attempt, grace_s)
            known.stop(grace_s)
        elif self._orphans.stop((job_id, attempt), grace_s):
            log.info("event=stop-orphan job=%s attempt=%d grace_s=%g", job_id, attempt, grace_s)
        elif (copy := self._copies.get((job_id, attempt))) is not None:
            del self._copies[job_id, attempt]
            copy.cancel()
            await asyncio.gather(copy, return_exceptions=True)
            order = agent_pb2.Launch(job_id=job_id, attempt=attempt)
            self._refuse(order, "it was asked to stop before all that it needs was here")

    async def swap(self, job_id: str, attempt: int, grace_s: float, swaps: int) -> None:
        """Ask the attempt to leave its GPU for host memory, or else to end within the grace period.

        `swaps` is how often it had left before: if that is not so, the order is old, and nothing happens.
        """
        known = self._attempts.get((job_id, attempt))
        if known is not None:
            log.info("event=swap job=%s attempt=%d grace_s=%g swaps=%d", job_id, attempt, grace_s, swaps)
            known.swap(grace_s, swaps)
        else:
            await self.stop(job_id, attempt, grace_s)

    async def resume(self, job_id: str, attempt: int, swaps: int) -> None:
        """Ask the attempt, which has left its GPU so often, to come back to it."""
        known = self._attempts.get((job_id, attempt))
        if known is not None:
            log.info("event=resume job=%s attempt=%d swaps=%d", job_id, attempt, swaps)
            known.resume(swaps)

    def renew(self, at: float) -> None:
        """The master has acknowledged what was sent at that time (CLOCK_BOOTTIME): whoever has a lease may go on."""
        self._renewed = max(self._renewed, at)
        for attempt in self._attempts.values():
            attempt.renew(self._renewed)

    async def forget(self, job_id: str, attempt: int) -> None:
        """Drop everything of an attempt that is over but its log. Raises OSError."""
        known = self._attempts.get((job_id, attempt))
        if known is None:
            self._orphans.forget((job_id, attempt))
            return
        if not known.is_over:
            log.warning("event=forget-ignored reason=still-running job=%s attempt=%d", job_id, attempt)
            return
        known.forget()
        del self._attempts[job_id, attempt]

    def statuses(self) -> list[agent_pb2.AttemptStatus]:
        """Those of all attempts that are not forgotten."""
        phase = agent_pb2.ATTEMPT_PHASE_LAUNCHING
        waiting = [agent_pb2.AttemptStatus(job_id=job, attempt=number, phase=phase) for job, number in self._copies]
        return [attempt.whole_status() for attempt in self._attempts.values()] + waiting + self._orphans.statuses()

    def pids(self) -> dict[AttemptKey, tuple[int, ...]]:
        """The live processes of each live attempt, its supervisor excepted."""
        supervisors = [(key, attempt.supervisor()) for key, attempt in list(self._attempts.items())]
        own = {key: tuple(descendants(process.pid)) for key, process in supervisors if process is not None}
        return own | self._orphans.pids()

    def groups(self) -> dict[Path, AttemptKey]:
        """The control groups of the attempts that have one."""
        found = {key: attempt.place.cgroup() for key, attempt in self._attempts.items()}
        return {path: key for key, path in found.items() if path is not None}

    def by_environment(self, pids: frozenset[int]) -> dict[int, AttemptKey]:
        """The attempts that those of these processes name in their environment which were launched here. May block."""
        return survivors.attempts_of(self._node_dir, pids)

    def place(self, job_id: str, attempt: int) -> AttemptDir:
        """Where the attempt's directory is, whether it exists or not. Raises ValueError for a job id that is none."""
        if not is_job_id(job_id):
            raise ValueError(f"{job_id[:80]!r} is not a job id")
        return AttemptDir.of(self._node_dir, job_id, attempt)

    def account(self, job_id: str, attempt: int) -> Account | None:
        """With whose rights the job's files are shown, which may have run here; None: with the agent's own. Blocks.

        Raises FileNotFoundError if it has none here.
        """
        known = self._attempts.get((job_id, attempt))
        if known is not None or os.geteuid():
            return None if known is None else known.intent.account
        return owner_of(self.roots(job_id)["checkpoints"])

    def shell(self, job_id: str, attempt: int) -> str:
        """The login shell of the account that the attempt runs as."""
        known = self._attempts.get((job_id, attempt))
        account = None if known is None else known.intent.account
        return login_shell() if account is None else account.shell

    def runs(self, job_id: str, attempt: int) -> bool:
        """Whether the attempt has processes here that compute."""
        known = self._attempts.get((job_id, attempt))
        return known is not None and known.status.phase == agent_pb2.ATTEMPT_PHASE_RUNNING

    def pids_of(self, job_id: str, attempt: int) -> tuple[int, ...]:
        """Its live processes, its supervisor excepted."""
        known = self._attempts.get((job_id, attempt))
        supervisor = None if known is None else known.supervisor()
        return () if supervisor is None else tuple(descendants(supervisor.pid))

    def gpus_of(self, job_id: str, attempt: int) -> frozenset[str]:
        """The UUIDs of the GPUs that it has for itself: how busy another is says nothing of it."""
        given = self.allocation(job_id, attempt)
        return frozenset(gpu.uuid for gpu in given if gpu.share.numerator >= gpu.share.denominator)

    def idle_limits(self) -> dict[AttemptKey, float]:
        """How long those that run and that have such a limit may be unused, in seconds."""
        limits = {key: attempt.intent.idle_limit_s for key, attempt in self._attempts.items() if self.runs(*key)}
        return {key: limit for key, limit in limits.items() if limit is not None}

    def note_unused(self, job_id: str, attempt: int, since: float, left_s: float) -> None:
        """Tell since when nobody uses it (Unix seconds; 0: somebody does), and what is left of its time."""
        known = self._attempts.get((job_id, attempt))
        if known is not None:
            known.note_unused(since, left_s)

    def roots(self, job_id: str) -> dict[str, Path]:
        """By the names that its user has for them, the directories that are given to the job besides its own."""
        job_dir = self._checkpoint_root / self.cluster_id / job_id
        return {"output": job_dir / "output", "checkpoints": job_dir}

    def copied_workdir(self, job_id: str) -> Path | None:
        """The job's own copy of the directory that it was submitted from, if it has one here."""
        places = (self._snapshots.workdir(job_id), self._workdirs_of_accounts / job_id)
        return next((place for place in places if is_job_id(job_id) and place.is_dir()), None)

    @property
    def _workdirs_of_accounts(self) -> Path:
        """Those that jobs of other accounts were submitted with; no name of a job begins as this does."""
        return self._checkpoint_root / self.cluster_id / f".workdirs-{self._node_dir.name}"

    def note_memory(self, seen: agent_pb2.AttemptStatus, tell: bool) -> None:
        """Note what was seen of the GPU memory of the attempt that `seen` names; it is told now, or with the next."""
        known = self._attempts.get((seen.job_id, seen.attempt))
        if known is not None:
            known.note_memory(seen, tell)

    def is_over(self, job_id: str, attempt: int) -> bool:
        """Whether it is proven that the attempt has ended. Of one that nothing is known of, nothing is."""
        known = self._attempts.get((job_id, attempt))
        return known.is_over if known is not None else AttemptDir.of(self._node_dir, job_id, attempt).is_forgotten()

    def allocation(self, job_id: str, attempt: int) -> tuple[job_pb2.GpuAllocation, ...]:
        """The GPUs that the attempt was launched on; empty for an unknown attempt."""
        known = self._attempts.get((job_id, attempt))
        return self._orphans.allocation((job_id, attempt)) if known is None else allocation_of(known.intent)

    async def read_log(
        self, job_id: str, attempt: int, offset: int | Edge, max_bytes: int, wait_s: float, rank: int | None = None
    ) -> agent_pb2.LogData:
        """One window of the attempt's log, a forgotten one's too; waits up to `wait_s` for data if more may come.

        With `rank`, only of what that one printed. With an edge instead of the offset, where that is.
        """
        known = self._attempts.get((job_id, attempt))
        place = AttemptDir.of(self._node_dir, job_id, attempt)
        if not is_job_id(job_id) or (known is None and not place.path.exists()):
            return agent_pb2.LogData(error=f"attempt {attempt} of job {job_id} was never on this node")
        if known is not None and known.status.phase == agent_pb2.ATTEMPT_PHASE_REFUSED:
            return agent_pb2.LogData(end=True)
        own_files = place.has_rank_outputs() if known is None else known.intent.rank_files
        path = place.rank_output(rank) if rank is not None and own_files else place.output
        if isinstance(offset, Edge):
            return await log_window.find(path, offset)
        return await log_window.read(path, offset, max_bytes, wait_s, is_over=lambda: known is None or known.is_over)

    async def read_checkpoint(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
        """Answer another node's question about a job's checkpoints. Raises OSError."""
        if not is_job_id(request.job_id) or not self.cluster_id:
            return agent_pb2.CheckpointData(error=f"{request.job_id[:80]!r} is not a job id")
        job_dir = self._checkpoint_root / self.cluster_id / request.job_id
        return await read_as_owner(job_dir, request)

    def _jobs_here(self) -> frozenset[str]:
        return frozenset(job for job, _ in (*self._attempts, *self._copies))

    def _intent_of(self, order: agent_pb2.Launch) -> Intent:
        assert self.cluster_id, "the cluster must be known before the first launch"
        return intent_of(
            order,
            node_dir=self._node_dir,
            checkpoint_root=self._checkpoint_root,
            cluster_id=self.cluster_id,
            fake_gpu_dir=self._fake_gpu_dir,
            network=self._network,
        )

    async def _launch_with_copy(self, order: agent_pb2.Launch, place: AttemptDir, intent: Intent) -> None:
        """Launch it once its working directory and its newest checkpoint are here; refuse if that cannot be."""
        key = (order.job_id, order.attempt)
        self._on_change(agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], phase=agent_pb2.ATTEMPT_PHASE_LAUNCHING))
        try:
            if order.spec.HasField("snapshot"):
                of_account = intent.account, self._workdirs_of_accounts
                workdir = await self._snapshots.place(*key, order.spec.snapshot.digest, *of_account)
                asked = ask(is_folder, order.spec.workdir, account=intent.account, within_s=ANSWER_S)
                intent = in_workdir(intent, order.spec, workdir, has_own=await asked is True)
            if order.move_checkpoint:
                async with self._copying:
                    name = await Copy(self.exchange, intent.job_dir, *key, intent.account).bring()
                if not name and intent.needs_checkpoint:
                    raise NotCopied("the node that had it has none that verifies")
        except NotPlaced as error:
            del self._copies[key]
            cause = agent_pb2.REFUSAL_CAUSE_BAD_JOB if error.gone else agent_pb2.REFUSAL_CAUSE_UNSPECIFIED
            self._refuse(order, f"its snapshot is not here: {error}", cause)
        except NotCopied as error:
            del self._copies[key]
            reason = f"its checkpoint could not be copied: {error}"
            self._refuse(order, reason, agent_pb2.REFUSAL_CAUSE_NOT_MOVED)
        except Exception as error:
            log.exception("event=copy-failed job=%s attempt=%d", *key)
            del self._copies[key]
            self._refuse(order, f"what it needs could not be brought here: {_words(error)}")
        else:
            # No await between the two: it is among the ones or the others at all times.
            del self._copies[key]
            await self._launch_or_refuse(order, place, intent)

    async def _launch_or_refuse(self, order: agent_pb2.Launch, place: AttemptDir, intent: Intent) -> None:
        try:
            await self._launch_new(place, intent)
        except Exception as error:  # before there is a supervisor, such as for want of room on the disk
            log.exception("event=launch-failed job=%s attempt=%d", order.job_id, order.attempt)
            del self._attempts[order.job_id, order.attempt]
            self._refuse(order, f"it could not be launched here: {_words(error)}")

    async def _launch_new(self, place: AttemptDir, intent: Intent) -> None:
        # Before anything is awaited: the same order may come again at any time.
        attempt = self._add(place, intent)
        self._on_change(attempt.status)
        running = await self._running_attempt(attempt)
        if running is not None:
            log.error("event=second-copy-refused job=%s attempt=%d running=%d", *attempt.key, running)
            attempt.apply(recovery.record_refusal(place, intent, f"node still runs attempt {running}"))
            return
        if lease.is_over_before_it_begins(intent.failover_after_s, intent.grace_s, self._renewed):
            attempt.apply(recovery.record_refusal(place, intent, "its lease is over: the master was not heard in time"))
            return
        try:
            intent = attempt.intent = replace(await self._sharing.prepare(intent), leased_at=self._renewed)
            channel = await self._standbys.take(intent) or await self._spawner.spawn()
        except NotShared as refused:
            attempt.apply(recovery.record_refusal(place, intent, str(refused)))
            return
        except OSError as error:
            attempt.apply(recovery.record_refusal(place, intent, f"cannot start a supervisor: {error}"))
            return
        try:
            await attempt.supervise(channel)
        except OSError as error:  # a supervisor may have the order, and is followed like one that another agent left
            log.error("event=order-not-passed job=%s attempt=%d error=%r", *attempt.key, str(error))
            attempt.recover()

    def _launch_again(self, order: agent_pb2.Launch, place: AttemptDir) -> None:
        """The attempt left something here, but is not known: its supervisor was just starting when this agent began,
        or it was forgotten, or what it left is damaged. It is not started in any case."""
        intent = None if place.is_forgotten() else read_intent(place)
        if intent is None:
            self._refuse(order, f"attempt {order.attempt} was already on this node")
        else:
            self._adopt(place, intent)

    def _refuse(
        self,
        order: agent_pb2.Launch,
        reason: str,
        cause: agent_pb2.RefusalCause.ValueType = agent_pb2.REFUSAL_CAUSE_UNSPECIFIED,
    ) -> None:
        """Answer an order that leaves no trace here."""
        log.error("event=launch-refused job=%s attempt=%d reason=%r", order.job_id, order.attempt, reason)
        self._on_change(refusal(order, reason, cause))

    def _add(self, place: AttemptDir, intent: Intent) -> Supervised:
        attempt = Supervised(place, intent, self._changed, self._sharing.verdict, self._gpus)
        self._attempts[attempt.key] = attempt
        return attempt

    def _changed(self, status: agent_pb2.AttemptStatus) -> None:
        attempt = self._attempts.get((status.job_id, status.attempt))
        if attempt is not None and attempt.told and not attempt.was_prepared_for and not attempt.is_over:
            attempt.was_prepared_for = True
            asyncio.get_running_loop().call_later(self._settled_s, self._prepare_for_next, attempt)
        if attempt is not None and attempt.is_over:
            self._sharing.left(attempt.key)
        self._on_change(status)

    def _fail(self, key: AttemptKey, failure: str) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None and not attempt.is_over:
            attempt.fail(failure)

    def _prepare_for_next(self, attempt: Supervised) -> None:
        if not attempt.is_over:
            self._standbys.prepare(attempt.place, attempt.intent)

    def _adopt(self, place: AttemptDir, intent: Intent) -> None:
        attempt = self._add(place, intent)
        self._sharing.adopt(intent)
        attempt.recover()

    async def _running_attempt(self, launching: Supervised) -> int | None:
        """The attempt of this job that has processes here, if one has, whatever became of its directory and lock."""
        job_id = launching.intent.job_id
        for attempt in self._attempts.values():
            if attempt.intent.job_id == job_id and attempt is not launching and not attempt.is_over:
                return attempt.intent.attempt
        if all(job != job_id for job, _ in self._unaccounted):
            return None
        still_running = await self._look_for_unaccounted(launching.key)
        return next((attempt for job, attempt in still_running if job == job_id), None)

    async def _look_for_unaccounted(self, launching: AttemptKey | None = None) -> frozenset[AttemptKey]:
        """Attempts that have processes here, while none that is known could have them."""
        running = await apart(partial(survivors.by_any_sign, self._node_dir))
        accounted = {key for key, attempt in self._attempts.items() if key != launching and not attempt.is_over}
        self._unaccounted = frozenset(running.keys() - accounted)
        known = self._attempts.keys() - {launching}  # how these ended is known, whoever has something of them still
        await self._orphans.take({key: running[key] for key in self._unaccounted - known})
        return self._unaccounted


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
