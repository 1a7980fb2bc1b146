"""Holds the parts of a master that its services for clients share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbtide_core.views.ledger import Ledger
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.config.limits import UserBounds
from ebbtide_master.history.recorder import HistoryRecorder
from ebbtide_master.identity.identities import Identities
from ebbtide_master.loop import MasterLoop
from ebbtide_master.nodes.sessions import Sessions
from ebbtide_master.nodes.snapshots import SnapshotStore
from ebbtide_master.nodes.supplies import HeardSupplies
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.store.environments import Environments
from ebbtide_master.store.journal import Store
from ebbtide_master.throttle.throttle import Throttle

if TYPE_CHECKING:  # this import needs the library for certificates, which most masters do without
    from ebbtide_master.tls.listeners import PublicEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The parts of a serving master."""

    about: client_pb2.ClusterInfo
    """What does not change about the cluster while this master runs."""
    loop: MasterLoop
    ledger: Ledger
    clock: Clock
    store: Store
    changes: Changes
    history: HistoryRecorder
    sessions: Sessions
    snapshots: SnapshotStore
    supplies: HeardSupplies
    environments: Environments
    identities: Identities
    wall: Callable[[], float]
    """The machine's clock, by which the gate has tokens expire; `clock` stands still while the machine sleeps."""
    notifier: Notifier
    bounds: UserBounds
    throttle: Throttle
    front: "PublicEndpoint | None"
    """Where other machines reach the master; None without an authority, when it serves its own machine only."""
