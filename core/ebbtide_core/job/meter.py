"""How fast one attempt gets on, from what it reports: steps per second, measured over windows of time.

A window begins and ends with a report of a new step, so that it holds whole steps and nothing else. What lies before
the first report (start-up, loading) is in none, nor is a save: where a checkpoint is published, the window ends with
the step before. The estimate is the median of the last windows: a hiccup or an evaluation is outvoted.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import AttemptRef

WINDOW_S: Final = 5.0
"""A window ends with the first step after so long; reports come three times a second at most."""
SHORTEST_S: Final = 2.0
"""What is left of a window before a save counts if it is no shorter."""
SOLID: Final = 3
"""Windows that an estimate needs."""
REMEMBERED: Final = 15
"""Windows that it is made from."""
TOGETHER: Final = 6
"""Windows with the same company that it takes to say how that slows somebody down."""

Company = frozenset[AttemptRef]
"""The other attempts on an attempt's GPUs."""
NOBODY: Final[Company] = frozenset()


@frozen
class Setting:
    """What a rate was measured on: ``share`` of all GPUs in parts, nodes, their model, and whether ``alone`` there."""

    share: int
    nodes: int
    model: str
    alone: bool


@frozen
class MeasuredRate:
    """Steps per second, and from how many windows that is known."""

    steps_per_s: float
    samples: int


@dataclass(slots=True)
class Windows:
    """The newest windows of one kind, in steps per second, and how many there were."""

    recent: deque[float]
    count: int = 0

    @classmethod
    def last(cls, remembered: int) -> "Windows":
        """None yet; so many will be remembered."""
        return cls(deque(maxlen=remembered))

    def add(self, steps_per_s: float) -> None:
        """Take in one more."""
        self.recent.append(steps_per_s)
        self.count += 1

    @property
    def steps_per_s(self) -> float:
        """Their median; there must be one."""
        return median(self.recent)


@dataclass(slots=True)
class AttemptMeter:
    """What was measured of an attempt since its job reports to this master; not in the journal.

    ``company`` are those beside it now, ``together`` the windows since they are. ``since`` is when it started, or was
    back on its GPU. ``fresh`` says that the last report ended a window; ``recorded``, how often something of it was put
    into the journal.
    """

    since: float
    company: Company = NOBODY
    alone: Windows = field(default_factory=lambda: Windows.last(REMEMBERED))
    shared: Windows = field(default_factory=lambda: Windows.last(REMEMBERED))
    together: Windows = field(default_factory=lambda: Windows.last(TOGETHER))
    fresh: bool = False
    recorded: int = 0
    _began: tuple[float, int] | None = None
    _last: tuple[float, int] | None = None

    def note(self, step: int, now: float, company: Company) -> None:
        """Take in a report of ``step`` at Unix time ``now``."""
        self.fresh = False
        if company != self.company:
            self.company, self.together, self._began = company, Windows.last(TOGETHER), None
        if self._last is None or step < self._last[1]:  # it counts anew
            self._began, self._last = None, (now, step)
        elif step > self._last[1]:  # a repeated report says nothing of when the step was made
            self._last = now, step
            if self._began is None:
                self._began = self._last
            elif now - self._began[0] >= WINDOW_S:
                self._end_window()

    def interrupt(self) -> None:
        """What comes now, until the next step, is no training."""
        if self._began is not None and self._last is not None and self._last[0] - self._began[0] >= SHORTEST_S:
            self._end_window()
        self._began = None

    def _end_window(self) -> None:
        assert self._began is not None
        assert self._last is not None
        steps_per_s = (self._last[1] - self._began[1]) / (self._last[0] - self._began[0])
        for windows in (self.shared if self.company else self.alone, self.together):
            windows.add(steps_per_s)
        self._began, self.fresh = self._last, True
