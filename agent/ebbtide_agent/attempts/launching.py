"""Launches each attempt once, when all that it needs is on this node."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ebbtide import regular
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts.accounts import BY_DEFAULT, AllowedAccounts, NoAccount
from ebbtide_agent.accounts.lookup import account_of
from ebbtide_agent.attempts import recovery
from ebbtide_agent.attempts.orphans import Orphans
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.attempts.registry import Registry
from ebbtide_agent.attempts.spawner import Spawner
from ebbtide_agent.attempts.standbys import Standbys
from ebbtide_agent.attempts.translation import in_workdir, intent_of, refusal
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.files.copying import Copy, NotCopied
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.files.path_checks import is_folder
from ebbtide_agent.files.required import ANSWER_S, missing
from ebbtide_agent.files.snapshots import NotPlaced, SnapshotCache
from ebbtide_agent.helper.asking import ask
from ebbtide_agent.mps.sharing import GpuSharing, NotShared
from ebbtide_agent.network import ANY, Network
from ebbtide_agent.supervisor import lease

log = logging.getLogger(__name__)

# How many attempts may copy their checkpoints from other nodes at once; others wait.
_COPIES = 2


class _NoPath(Exception):
    """A path that the job requires is missing; the message says why."""


class Launching:
    """Carries out orders to launch, and reports the outcome of each.

    As root, it starts a job under the job's account, if that is one of the `allowed`.
    """

    def __init__(
        self,
        places: NodeDirectories,
        registry: Registry,
        orphans: Orphans,
        spawner: Spawner,
        standbys: Standbys,
        sharing: GpuSharing,
        exchange: Exchange,
        snapshots: SnapshotCache,
        report: Callable[[agent_pb2.AttemptStatus], None],
        fake_gpu_dir: Path | None = None,
        network: Network = ANY,
        allowed: AllowedAccounts = BY_DEFAULT,
    ) -> None:
        self._places = places
        self._registry = registry
        self._orphans = orphans
        self._spawner = spawner
        self._standbys = standbys
        self._sharing = sharing
        self._exchange = exchange
        self._snapshots = snapshots
        self._report = report
        self._fake_gpu_dir = None if fake_gpu_dir is None else fake_gpu_dir.resolve()
        self._network = network
        self._allowed = allowed
        self._copying = asyncio.Semaphore(_COPIES)
        self._preparing: dict[AttemptKey, asyncio.Task[None]] = {}  # of attempts that wait for what they need

    async def launch(self, order: agent_pb2.Launch) -> None:
        """Start the attempt. If it was started before, only report its status again."""
        key = (order.job_id, order.attempt)
        known = self._registry.attempts.get(key)
        if (status := self._orphans.status(key) if known is None else known.status) is not None:
            self._report(status)
            return
        if key in self._preparing:
            return
        try:
            intent = self._intent_of(order)
        except ValueError as error:
            self._refuse(order, str(error))
            return
        place = self._places.attempt(order.job_id, order.attempt)
        if regular.is_there(place.path):
            self._launch_again(order, place)
            return
        preparing = asyncio.create_task(self._prepare_and_launch(order, place, intent), name=f"launch of {key}")
        self._preparing[key] = preparing
        if not _waits_for_files(order):  # else the next order may be to stop the attempt
            await asyncio.wait({preparing})

    async def cancel(self, key: AttemptKey) -> None:
        """Refuse an attempt that is in no registry: it waits for what it needs, or its launch failed or never came.

        No launch of it comes later: the master launches nothing that it has asked to stop, and orders keep their order.
        """
        preparing, reason = self._preparing.pop(key, None), "it was asked to stop, and has not begun here"
        if preparing is not None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
            reason = "it was asked to stop before all that it needs was here"
        elif regular.is_there(self._places.attempt(*key).path):
            return  # it was forgotten, or its directory is damaged: it may have run
        self._refuse(agent_pb2.Launch(job_id=key[0], attempt=key[1]), reason)

    def waiting(self) -> frozenset[AttemptKey]:
        """Return the attempts that wait for what they need."""
        return frozenset(self._preparing)

    async def close(self) -> None:
        """Cancel the launches that wait for what they need."""
        preparing = list(self._preparing.values())
        for launch in preparing:
            launch.cancel()
        await asyncio.gather(*preparing, return_exceptions=True)

    def _intent_of(self, order: agent_pb2.Launch) -> Intent:
        assert self._places.cluster_id, "the cluster must be known before the first launch"
        return intent_of(
            order,
            node_dir=self._places.node_dir,
            checkpoint_root=self._places.checkpoint_root,
            cluster_id=self._places.cluster_id,
            fake_gpu_dir=self._fake_gpu_dir,
            network=self._network,
        )

    async def _prepare_and_launch(self, order: agent_pb2.Launch, place: AttemptDir, intent: Intent) -> None:
        """Launch the attempt once all that it needs is here; refuse it if that cannot be."""
        key = (order.job_id, order.attempt)
        try:
            intent = await self._prepared(order, intent)
        except (NoAccount, _NoPath, NotPlaced, NotCopied) as error:
            del self._preparing[key]
            self._refuse(order, *_why_not(error))
        except Exception as error:  # every order is answered, even after, say, a hostile node's reply
            log.exception("event=not-prepared job=%s attempt=%d", *key)
            del self._preparing[key]
            self._refuse(order, f"what it needs could not be brought here: {_words(error)}")
        else:
            # No await between these two, so that the attempt is always either waiting or in the registry.
            del self._preparing[key]
            await self._launch_or_refuse(order, place, intent)

    async def _prepared(self, order: agent_pb2.Launch, intent: Intent) -> Intent:
        """Return the intent once its account, its working directory and its newest checkpoint are here.

        Raises NoAccount, _NoPath, NotPlaced, NotCopied, or whatever fails on the way.
        """
        key = (order.job_id, order.attempt)
        account = await account_of(order.account, order.uid if order.HasField("uid") else None, self._allowed)
        intent = replace(intent, account=account)
        if order.spec.needs.require_paths and (reason := await missing(order.spec.needs.require_paths, account)):
            raise _NoPath(reason)
        if _waits_for_files(order):
            phase = agent_pb2.ATTEMPT_PHASE_LAUNCHING
            self._report(agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], phase=phase))
        if order.spec.HasField("snapshot"):
            of_account = account, self._places.workdirs_of_accounts
            workdir = await self._snapshots.place(*key, order.spec.snapshot.digest, *of_account)
            asked = ask(is_folder, order.spec.workdir, account=account, within_s=ANSWER_S)
            intent = in_workdir(intent, order.spec, workdir, has_own=await asked is True)
        if order.move_checkpoint:
            async with self._copying:
                name = await Copy(self._exchange, intent.job_dir, *key, account).bring()
            if not name and intent.needs_checkpoint:
                raise NotCopied("the node that had it has none that verifies")
        return intent

    async def _launch_or_refuse(self, order: agent_pb2.Launch, place: AttemptDir, intent: Intent) -> None:
        try:
            await self._launch_new(place, intent)
        except Exception as error:  # no supervisor exists yet to report it, and every order is answered
            log.exception("event=launch-failed job=%s attempt=%d", order.job_id, order.attempt)
            self._registry.discard((order.job_id, order.attempt))
            self._refuse(order, f"it could not be launched here: {_words(error)}")

    async def _launch_new(self, place: AttemptDir, intent: Intent) -> None:
        # Register before the first await, because the same order may come again at any time.
        attempt = self._registry.add(place, intent)
        self._report(attempt.status)
        running = await self._registry.running_attempt(attempt)
        if running is not None:
            log.error("event=second-copy-refused job=%s attempt=%d running=%d", *attempt.key, running)
            attempt.apply(recovery.record_refusal(place, intent, f"node still runs attempt {running}"))
            return
        if lease.is_over_before_it_begins(intent.failover_after_s, intent.grace_s, self._registry.renewed):
            attempt.apply(recovery.record_refusal(place, intent, "its lease is over: the master was not heard in time"))
            return
        try:
            intent = attempt.intent = replace(await self._sharing.prepare(intent), leased_at=self._registry.renewed)
            channel = await self._standbys.take(attempt) or await self._spawner.spawn()
        except NotShared as refused:
            attempt.apply(recovery.record_refusal(place, intent, str(refused)))
            return
        except OSError as error:
            attempt.apply(recovery.record_refusal(place, intent, f"cannot start a supervisor: {error}"))
            return
        try:
            await attempt.supervise(channel)
        except OSError as error:  # a supervisor may have got the order: follow it as one left by an earlier agent
            log.error("event=order-not-passed job=%s attempt=%d error=%r", *attempt.key, str(error))
            attempt.recover()

    def _launch_again(self, order: agent_pb2.Launch, place: AttemptDir) -> None:
        """Adopt or refuse, but never start, an attempt that has a directory but is not in the registry: its supervisor
        was just starting when this agent began, or it was forgotten, or its directory is damaged."""
        intent = None if place.is_forgotten() else recovery.read_intent(place)
        if intent is None:
            self._refuse(order, f"attempt {order.attempt} was already on this node")
        else:
            self._registry.adopt(place, intent)

    def _refuse(
        self,
        order: agent_pb2.Launch,
        reason: str,
        cause: agent_pb2.RefusalCause.ValueType = agent_pb2.REFUSAL_CAUSE_UNSPECIFIED,
    ) -> None:
        """Report a refusal that leaves nothing on disk."""
        log.error("event=launch-refused job=%s attempt=%d reason=%r", order.job_id, order.attempt, reason)
        self._report(refusal(order, reason, cause))


def _waits_for_files(order: agent_pb2.Launch) -> bool:
    """Return whether the attempt waits for files that other machines send, for as long as that takes."""
    return order.move_checkpoint or order.spec.HasField("snapshot")


def _why_not(error: NoAccount | _NoPath | NotPlaced | NotCopied) -> tuple[str, agent_pb2.RefusalCause.ValueType]:
    """Return why the attempt is refused because of this error, in words and as a cause."""
    match error:
        case NoAccount():
            return str(error), agent_pb2.REFUSAL_CAUSE_NO_ACCOUNT
        case _NoPath():
            return str(error), agent_pb2.REFUSAL_CAUSE_NO_PATH
        case NotPlaced():
            cause = agent_pb2.REFUSAL_CAUSE_BAD_JOB if error.gone else agent_pb2.REFUSAL_CAUSE_UNSPECIFIED
            return f"its snapshot is not here: {error}", cause
        case NotCopied():
            return f"its checkpoint could not be copied: {error}", agent_pb2.REFUSAL_CAUSE_NOT_MOVED


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
