"""Measures the speed of one attempt from its reports: steps per second, over windows of time.

A window begins and ends with a report of a new step, so that it holds whole steps and nothing else. The time before
the first report (start-up, loading) is in no window, and neither is a save: when a checkpoint is published, the window
ends with the step before. The estimate is the median of the last windows: a hiccup or an evaluation is outvoted.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import AttemptRef

WINDOW_S: Final = 5.0
"""Seconds. A window ends with the first step after this time; reports come three times a second at most."""
SHORTEST_S: Final = 2.0
"""Seconds. A window that a save cuts short counts if it is at least this long."""
SOLID: Final = 3
"""Windows that an estimate needs at least."""
REMEMBERED: Final = 15
"""Windows that an estimate is made from at most."""
TOGETHER: Final = 6
"""Windows beside the same other attempts that it takes to say how much these slow an attempt down."""

Neighbours = frozenset[AttemptRef]
"""The other attempts on the GPUs of an attempt."""
NO_NEIGHBOURS: Final[Neighbours] = frozenset()


@frozen
class Setting:
    """What a rate was measured on: ``share`` parts of GPUs of one model on ``nodes`` nodes, ``alone`` there or not."""

    share: int
    nodes: int
    model: str
    alone: bool


@frozen
class MeasuredRate:
    """A rate in steps per second, and the number of windows that it was measured over."""

    steps_per_s: float
    samples: int


@dataclass(slots=True)
class Windows:
    """The newest windows of one kind, in steps per second, and the number of all windows so far."""

    recent: deque[float]
    count: int = 0

    @classmethod
    def last(cls, remembered: int) -> "Windows":
        """Return an empty object that will remember so many windows."""
        return cls(deque(maxlen=remembered))

    def add(self, steps_per_s: float) -> None:
        """Add a window."""
        self.recent.append(steps_per_s)
        self.count += 1

    @property
    def steps_per_s(self) -> float:
        """The median of the windows; there must be at least one."""
        return median(self.recent)


@dataclass(slots=True)
class AttemptMeter:
    """What this master measured of an attempt from its reports; it is not in the journal.

    ``neighbours`` are the other attempts on its GPUs now, ``together`` the windows since exactly these are there.
    ``since`` is the Unix time at which the attempt started, or was back on its GPU. ``fresh`` says that the last report
    ended a window; ``recorded`` counts how often a rate was written to the journal.
    """

    since: float
    neighbours: Neighbours = NO_NEIGHBOURS
    alone: Windows = field(default_factory=lambda: Windows.last(REMEMBERED))
    shared: Windows = field(default_factory=lambda: Windows.last(REMEMBERED))
    together: Windows = field(default_factory=lambda: Windows.last(TOGETHER))
    fresh: bool = False
    recorded: int = 0
    _began: tuple[float, int] | None = None
    _last: tuple[float, int] | None = None

    def note(self, step: int, now: float, neighbours: Neighbours) -> None:
        """Take in a report of ``step`` at Unix time ``now``, with the attempts ``neighbours`` on the same GPUs."""
        self.fresh = False
        if neighbours != self.neighbours:
            self.neighbours, self.together, self._began = neighbours, Windows.last(TOGETHER), None
        if self._last is None or step < self._last[1]:  # a lower step: the script counts from the beginning again
            self._began, self._last = None, (now, step)
        elif step > self._last[1]:  # a repeated report says nothing of when the step was made
            self._last = now, step
            if self._began is None:
                self._began = self._last
            elif now - self._began[0] >= WINDOW_S:
                self._end_window()

    def interrupt(self) -> None:
        """End the window with the last step, because the time until the next one is not spent on training."""
        if self._began is not None and self._last is not None and self._last[0] - self._began[0] >= SHORTEST_S:
            self._end_window()
        self._began = None

    def _end_window(self) -> None:
        assert self._began is not None
        assert self._last is not None
        steps_per_s = (self._last[1] - self._began[1]) / (self._last[0] - self._began[0])
        for windows in (self.shared if self.neighbours else self.alone, self.together):
            windows.add(steps_per_s)
        self._began, self.fresh = self._last, True
