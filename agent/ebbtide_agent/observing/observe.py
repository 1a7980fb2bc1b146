"""Looks at the GPUs and records them regularly, until the time is over or a stop is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ebbtide_agent.gpu.backend import GpuBackend
from ebbtide_agent.observing.observation import look
from ebbtide_agent.observing.recording import Recording, Summary


class ObserverClock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Return the time in Unix seconds."""

    def wait_until(self, at: float) -> bool:
        """Wait until that time. Return False if a stop is asked for meanwhile."""


@dataclass(frozen=True, slots=True)
class ObservationPlan:
    """How often to look, and for how long; seconds."""

    every_s: float = 15.0
    for_s: float | None = None  # None: until asked to stop
    whole_commands: bool = False


def observe(
    backend: GpuBackend,
    recording: Recording,
    plan: ObservationPlan,
    clock: ObserverClock,
    progress: Callable[[Summary], None],
) -> Summary:
    """Record until the plan's time is over or the clock says stop; call ``progress`` at each look. Raises OSError."""
    began = clock.now()
    end = None if plan.for_s is None else began + plan.for_s
    number = 0
    while True:
        recording.take(look(backend, clock.now(), plan.whole_commands))
        progress(recording.summary())
        # Looks are timed from the beginning, so that they do not drift; those that a slow look missed are skipped.
        number = max(number + 1, int((clock.now() - began) / plan.every_s))
        due = began + number * plan.every_s
        if (end is not None and due > end) or not clock.wait_until(due):
            return recording.summary()
