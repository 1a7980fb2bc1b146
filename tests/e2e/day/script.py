"""What is to happen on a day: who submits what and how that is to end, what breaks, what people wish. All seeded."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

LASTS_S = 90.0
"""Until the last submit."""
STEP_S = 0.2
GRACE_S = 5.0
USERS = ("anna", "bob", "carla")
"""Who submit through the API; the fourth is the account itself, through the command line."""
NODES = {"tower": ("4xA100-40GB", "default"), "left": ("2xA100-40GB", "default"), "right": ("2xRTX4090", "trials")}
"""Their GPUs and pools."""
CONFIGS = {
    "fair-share": """
[pools.default]
policy = "fair-share"
options = { per = "user", min_run_s = 0, resize_after_s = 1 }

[pools.trials]
policy = "priority"
options = { min_run_s = 1, resize_after_s = 2 }
""",
    "tide": """
[pools.default]
policy = "tide"
options = { min_run_s = 0, resize_after_s = 1 }

[pools.trials]
policy = "tide"
options = { min_run_s = 0, resize_after_s = 2 }
""",
}
"""The pools, by the policy of the first. Nobody is spared after a preemption: that is for ten times what a restart
costs, which is more than most jobs of this day last, in which everything is some hundred times faster than in a real
one."""


@dataclass(frozen=True)
class Planned:
    """A job, or an array, that somebody submits ``at`` so many seconds into the day; ``end`` is how each is to end.

    ``gpus`` is the range, or a fraction as (1, 4). ``cancel_s``: its user gives it up so long after the submit.
    """

    key: str
    at: float
    user: str
    kind: str
    end: str = "COMPLETED"
    gpus: tuple[int, int] = (1, 1)
    quarter: bool = False
    pool: str = ""
    steps: int = 20
    how: str = "sdk"
    fails: int = 0
    retries: int = 9
    tasks: int = 0
    limit: int = 0
    time_limit_s: float | None = None
    cancel_s: float | None = None
    after: tuple[tuple[str, str], ...] = ()
    priority: int = 42

    @property
    def keys(self) -> list[str]:
        """Of the job, or of each task."""
        return [f"{self.key}.{index}" for index in range(self.tasks)] if self.tasks else [self.key]

    @property
    def stays_as_it_is(self) -> bool:
        """Whether nobody may touch it, or it would end otherwise than planned."""
        return bool(self.fails or self.cancel_s is not None or self.time_limit_s is not None)


@dataclass(frozen=True)
class Happening:
    """A fault or a wish, ``at`` so many seconds into the day; ``dice`` is for whom it hits."""

    at: float
    what: str
    dice: int


@dataclass(frozen=True)
class Script:
    seed: int
    jobs: tuple[Planned, ...]
    happenings: tuple[Happening, ...]
    ends: dict[str, str] = field(default_factory=dict)
    """How each job or task is to end."""


KINDS = {
    "rigid": 46, "pair": 16, "large": 4, "elastic": 24, "quarter": 26, "zero": 14, "array": 30, "shell": 4,
    "notebook": 4, "after": 12, "retried": 6, "failing": 4, "limited": 4, "given-up": 6,
}  # fmt: skip
"""200 jobs; of an array each task counts."""
TASKS = 6
FAULTS = (
    *["kill master"] * 2, *["kill agent"] * 2, *["kill process"] * 5, *["lose GPU"] * 2, *["foreign process"] * 2,
    "stop agent",
)  # fmt: skip
WISHES = (*["suspend"] * 8, *["hold"] * 5, *["resize"] * 4, *["priority"] * 4, *["requeue"] * 4)


def write(seed: int, size: float = 1.0) -> Script:
    """The day of ``seed``; with ``size``, only that part of it."""
    dice = random.Random(seed)
    jobs: list[Planned] = []
    numbers = count(1)
    for kind, wanted in KINDS.items():
        for _ in range(max(1, round(wanted * size / (TASKS if kind == "array" else 1)))):
            key = f"{kind}-{next(numbers)}"
            lasts = LASTS_S * size if kind not in ("failing", "given-up") else LASTS_S * size / 2
            jobs.append(_job(dice, kind, key, dice.uniform(0.0, lasts), jobs))
    jobs.sort(key=lambda job: job.at)
    ends = {key: job.end for job in jobs for key in job.keys}
    return Script(seed, tuple(jobs), tuple(_happenings(dice, size)), ends)


def _job(dice: random.Random, kind: str, key: str, at: float, before: list[Planned]) -> Planned:
    user = dice.choices([*USERS, ""], [4, 3, 3, 1.5])[0]
    pool = dice.choices(["", "trials"], [3, 1])[0]
    how = dice.choice(["sdk", "sdk", "plain"])
    given = {"key": key, "at": at, "user": user, "kind": kind, "pool": pool, "how": how}
    given |= {"steps": dice.randint(8, 30), "priority": dice.choice([42, 42, 30, 60])}
    given |= _of_kind(dice, kind, pool)
    if kind == "after":
        given |= _after(dice, at, before)
    return Planned(**given)


def _of_kind(dice: random.Random, kind: str, pool: str) -> dict[str, object]:
    """What makes a job one of its kind."""
    match kind:
        case "pair":
            return {"gpus": (2, 2)}
        case "large":
            return {"gpus": (3, 3), "pool": ""}
        case "elastic":
            return {"gpus": (1, 2 if pool else 3), "steps": dice.randint(20, 40)}
        case "quarter":
            return {"quarter": True}
        case "zero":
            return {"gpus": (0, 0), "how": "plain"}
        case "array":
            return {"tasks": TASKS, "limit": 2, "steps": dice.randint(8, 16)}
        case "retried":
            return {"fails": dice.randint(1, 2), "how": "sdk"}
        case "failing":
            return {"fails": 10**6, "retries": 1, "end": "FAILED", "steps": 10}
        case "limited":
            return {"time_limit_s": 3.0, "steps": 10**6, "end": "FAILED", "retries": 0}
        case "given-up":
            return {"cancel_s": dice.uniform(1, 6), "steps": 10**6, "end": "CANCELLED"}
        case "shell" | "notebook":
            ends = {"steps": 10**6, "cancel_s": dice.uniform(4, 8), "end": "CANCELLED", "retries": 0}
            return {"user": dice.choice(USERS), "how": "plain", **ends}
    return {}


def _after(dice: random.Random, at: float, before: list[Planned]) -> dict[str, object]:
    """Whom it waits for, and what follows from that."""
    other = dice.choice([job for job in before if job.at < LASTS_S / 2 and job.kind in ("rigid", "pair", "array")])
    bad = [job for job in before if job.kind in ("failing", "given-up")]
    how = dice.choice(["ok", "ok", "any", "not-ok", "impossible"])
    if how in ("not-ok", "impossible") and bad:
        other = dice.choice(bad)
    elif how in ("not-ok", "impossible"):
        how = "ok" if how == "not-ok" else "never"
    wanted = {"impossible": "ok", "never": "not-ok"}.get(how, how)
    end = "CANCELLED" if how in ("impossible", "never") else "COMPLETED"
    return {"at": max(at, other.at + 0.1), "after": ((wanted, other.key),), "end": end}


def _happenings(dice: random.Random, size: float) -> Iterator[Happening]:
    """Faults never closer than five seconds, which is what it takes to see to one; wishes at any time."""
    faults = [fault for fault in FAULTS if dice.random() < size]
    dice.shuffle(faults)
    for index, fault in enumerate(faults):
        yield Happening(
            8.0 + (LASTS_S * size - 8.0) * (index + dice.random() * 0.3) / len(faults), fault, dice.randrange(2**32)
        )
    for wish in WISHES:
        if dice.random() < size:
            yield Happening(dice.uniform(5.0, LASTS_S * size), wish, dice.randrange(2**32))
