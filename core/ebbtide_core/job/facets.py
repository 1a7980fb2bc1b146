"""Holds the facets of a job: what is known of one side of it, as a value of its own.

A facet that seldom changes is immutable. All jobs share the one of which nothing is known yet, and a change replaces
it as a whole (`dataclasses.replace`). A facet that changes as a job runs belongs to that job alone, and is assigned to.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import NodeId


@frozen
class Retries:
    """How often a job was started again because an attempt failed, or a launch."""

    restarts: int = 0
    """How often it went on after an attempt that ended, or was interrupted, without being asked to."""
    failures: int = 0
    """How many of its attempts failed and were tried again, at most as many as its spec allows."""
    requeues_in_row: int = 0
    """How often in a row it had to be run again without having saved anything; each time, it waits longer."""
    vain_in_row: int = 0
    """How many launches in a row failed, on any node, since an attempt of it last ran."""
    launches_in_vain: Mapping[NodeId, int] = field(default_factory=dict)
    """How many launches failed on each node since an attempt of it last ran."""

    def with_launches(self, node: NodeId, there: int, *, in_row: int | None = None) -> "Retries":
        """Return them with ``there`` failed launches on ``node``, and with ``in_row`` on all nodes, if given."""
        return replace(
            self,
            vain_in_row=self.vain_in_row if in_row is None else in_row,
            launches_in_vain={**self.launches_in_vain, node: there},
        )


NO_RETRIES: Final = Retries()
"""Those of a job that was never started again."""
