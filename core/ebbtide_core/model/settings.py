"""What an administrator decides on and the core goes by. It is no part of the state: a restart may change it."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.quotas import Quotas

DEFAULT_POLICY: Final = "fitgpp"
DEFAULT_POOL: Final = "default"
DEFAULT_IDLE_S: Final = 8 * 3600.0
"""After so long without anybody at it, and without computing, a session is ended."""


class Fitting(Enum):
    """Which node with room a rigid job gets: the one with least of it to spare, or the one with most."""

    BEST = "best"
    WORST = "worst"


@frozen(kw_only=True)
class PoolSettings:
    """How one pool of nodes is scheduled; ``options`` are the policy's, as text."""

    policy: str = DEFAULT_POLICY
    options: Mapping[str, str] = field(default_factory=dict)
    fitting: Fitting = Fitting.BEST


class IdleAction(Enum):
    """What becomes of jobs that do not use their GPUs: they are told of, or suspended after a warning, too."""

    NOTIFY = "notify"
    SUSPEND = "suspend"


@frozen(kw_only=True)
class IdleSettings:
    """After how many seconds without use a job is idle, and how many more it has before anything is done about it."""

    after_s: float = 1800.0
    action: IdleAction = IdleAction.NOTIFY
    warning_s: float = 600.0


@frozen(kw_only=True)
class Settings:
    """All of it. Jobs that name no pool go to ``gpu_pool``, those without GPUs to ``cpu_pool``.
    Sessions that do not say how long they may be unused are ended after ``idle_s`` seconds; None: never."""

    pools: Mapping[str, PoolSettings] = field(default_factory=lambda: {DEFAULT_POOL: PoolSettings()})
    gpu_pool: str = DEFAULT_POOL
    cpu_pool: str = DEFAULT_POOL
    idle: IdleSettings = IdleSettings()
    quotas: Quotas = field(default_factory=Quotas)
    idle_s: float | None = DEFAULT_IDLE_S
