"""Joins the rules of all areas, and finds the rule of an event."""

from typing import Any, Final

from ebbtide_core.events import Event
from ebbtide_core.lifecycle import (
    attempts,
    clock,
    ending,
    forgetting,
    idling,
    log_matches,
    lost_gpus,
    master,
    pool_membership,
    progress,
    registration,
    removing,
    requests,
    requeuing,
    submission,
    successive_halving,
    swaps,
    unsaved_work,
    unused_sessions,
)
from ebbtide_core.measuring import gpu_memory, interference, rates
from ebbtide_core.nodes import (
    booking_placement,
    draining,
    foreign_use,
    loan_ends,
    node_health,
    quiescing,
    silence,
    strays,
)
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

# Each rule takes its own type of event, and no type can say that of all rules together. Only this tuple is untyped.
ALL: Final[tuple[Rule[Any], ...]] = (
    *attempts.RULES,
    *booking_placement.RULES,
    *clock.RULES,
    *draining.RULES,
    *ending.RULES,
    *foreign_use.RULES,
    *forgetting.RULES,
    *gpu_memory.RULES,
    *idling.RULES,
    *interference.RULES,
    *loan_ends.RULES,
    *log_matches.RULES,
    *lost_gpus.RULES,
    *master.RULES,
    *node_health.RULES,
    *pool_membership.RULES,
    *progress.RULES,
    *quiescing.RULES,
    *rates.RULES,
    *registration.RULES,
    *removing.RULES,
    *requests.RULES,
    *requeuing.RULES,
    *silence.RULES,
    *strays.RULES,
    *submission.RULES,
    *successive_halving.RULES,
    *swaps.RULES,
    *unsaved_work.RULES,
    *unused_sessions.RULES,
)

RULES: Final = {rule.event: rule for rule in ALL}
STEPS: Final = {rule.event: (rule.news, rule.apply, rule.command, rule.decide) for rule in ALL}
"""The functions that `ebbtide_core.cluster.Cluster` calls for each event; one look-up finds all of them."""


def apply(state: ClusterState, event: Event, now: float) -> None:
    """Apply ``event``, which is news, to ``state``."""
    if (change := RULES[type(event)].apply) is not None:
        change(state, event, now)
