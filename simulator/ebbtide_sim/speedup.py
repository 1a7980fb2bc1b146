"""How much faster a job is on more GPUs, or slower on a share of one."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from ebbtide_core.model import WHOLE


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speed relative to one GPU, as a function of parts: straight lines from (0, 0) through ``points``.

    ``points`` are (parts, speed), both increasing (speeds may stay equal), and speed is 1 at one GPU. After the last
    point the speed grows by ``beyond`` per further GPU.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    beyond: float = 0.0
    _known: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, parts: int) -> float:
        """The speed on ``parts`` of GPUs; 0 on none."""
        speed = self._known.get(parts)
        if speed is None:
            speed = self._known[parts] = self._interpolated(parts)
        return speed

    def _interpolated(self, parts: int) -> float:
        after = bisect_right(self.points, parts, key=lambda point: point[0])
        low, slow = self.points[after - 1] if after else (0, 0.0)
        if after == len(self.points):
            return slow + self.beyond * (parts - low) / WHOLE
        high, fast = self.points[after]
        return slow + (fast - slow) * (parts - low) / (high - low)


LINEAR: Final = Speedup("linear", ((WHOLE, 1.0),), beyond=1.0)
"""Twice the GPUs, twice the speed; 1/n of one, 1/n of its speed."""
