"""What a master's own life does to the cluster's state: it takes over, and goes down."""

from ebbtide_core import events as e
from ebbtide_core import limits
from ebbtide_core.state import ClusterState


def master_started(state: ClusterState, event: e.MasterStarted, now: float) -> None:
    """Fold: no node is connected, and those with attempts are waited for."""
    state.epoch = event.epoch
    state.recovery_ends = now + limits.RECOVERY_GRACE_S
    state.awaited = {id for id, node in state.nodes.items() if node.attempts}
    for node in state.nodes.values():
        node.connected = False
        state.refresh_node(node)


def quiesced(state: ClusterState, event: e.Quiesced, now: float) -> None:
    """Fold: nothing starts from now on."""
    state.quiesced = True


def unquiesced(state: ClusterState, event: e.Unquiesced, now: float) -> None:
    """Fold: jobs may start again."""
    state.quiesced = False
