"""Applies the events of the master itself: its start, a restored journal, and a configuration read again."""

from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events.words import by
from ebbtide_core.model import limits
from ebbtide_core.nodes import silence
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def _started(state: ClusterState, event: e.MasterStarted, now: float) -> None:
    state.epoch = event.epoch
    state.recovery_ends = now + limits.RECOVERY_GRACE_S
    state.awaited = {id for id, node in state.nodes.items() if node.attempts}
    state.silent.started = now
    state.leasing.clear()  # this master does not know what the one before it acknowledged
    for node in state.nodes.values():
        node.connected = False
        state.refresh_node(node)


def _restored(state: ClusterState, event: e.JournalRestored, now: float) -> None:
    state.submissions += event.skipped
    silence.await_all(state)


RULES: Final = (
    Rule(e.MasterStarted, apply=_started, say=lambda event: f"master started (epoch {event.epoch})"),
    Rule(
        e.JournalRestored,
        apply=_restored,
        say=lambda event: f"put back from a backup; {event.skipped} ids of jobs are skipped",
    ),
    Rule(
        e.ConfigurationRead,
        say=lambda event: f"configuration read again{by(event.user)}: {', '.join(event.sections)} changed",
    ),
    Rule(e.SchedulingDue, say=lambda event: "time to look at everything again"),  # `Cluster.handle` runs the pass
)
