"""What goes wrong, where, when and for how long: all of it follows from a seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MEAN_PAUSE_S = 0.5
MASTER = "master"
KINDS = {
    "kill master": 4, "stop master": 4,
    "kill agent": 12, "stop agent": 8, "kill supervisor": 14, "stop supervisor": 8,
    "partition": 8, "partition onward": 6, "partition back": 6,
    "half-open": 6, "half-open onward": 4, "half-open back": 4,
    "delay": 5, "cut": 5, "drop": 5,
}  # fmt: skip
"""And how often, relative to each other."""


@dataclass(frozen=True, slots=True)
class Strike:
    """``seconds`` after ``at`` it is over; ``dice`` is a seed for what else there is to choose."""

    at: float
    kind: str
    node: str
    seconds: float
    dice: int

    @property
    def target(self) -> str:
        """What cannot suffer two things at once."""
        return MASTER if self.node == MASTER else f"{_part(self.kind)} {self.node}"


def _part(kind: str) -> str:
    word = kind.split()[-1]
    return word if word in ("agent", "supervisor") else "line"


def _length(dice: random.Random, long_s: float) -> float:
    """Most are short; one in twenty outlasts what the master takes for silence."""
    drawn = dice.random()
    if drawn < 0.7:
        return dice.uniform(0.05, 1.0)
    if drawn < 0.95:
        return dice.uniform(1.0, 5.0)
    return dice.uniform(0.9, 1.1) * long_s


def strikes(seed: int, nodes: Sequence[str], long_s: float) -> Iterator[Strike]:
    """Without end, in the order of their times; none on what suffers from another one already."""
    dice = random.Random(seed)
    free_at = dict[str, float]()
    now = 0.0
    while True:
        now += dice.expovariate(1 / MEAN_PAUSE_S)
        [kind] = dice.choices(list(KINDS), list(KINDS.values()))
        node = MASTER if kind.endswith(MASTER) else dice.choice(nodes)
        seconds = _length(dice, 3.0 if node == MASTER else long_s)
        strike = Strike(now, kind, node, seconds, dice.randrange(2**32))
        if free_at.get(strike.target, 0.0) < now:
            free_at[strike.target] = now + seconds + 0.5
            yield strike
