"""Defines the settings of an administrator that the core uses. They are not part of the state: a restart may change
them."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.quotas import Quotas

DEFAULT_POLICY: Final = "fitgpp"
DEFAULT_POOL: Final = "default"
DEFAULT_IDLE_S: Final = 8 * 3600.0
"""Seconds after which a session that no user uses, and that computes nothing, is ended."""


class Fitting(Enum):
    """Which of the nodes with room a rigid job gets: that with the least room to spare, or that with the most."""

    BEST = "best"
    WORST = "worst"


@frozen(kw_only=True)
class PoolSettings:
    """How one pool of nodes is scheduled; ``options`` are those of the policy, as text."""

    policy: str = DEFAULT_POLICY
    options: Mapping[str, str] = field(default_factory=dict)
    fitting: Fitting = Fitting.BEST


class IdleAction(Enum):
    """What happens to jobs that do not use their GPUs: they are reported, or also suspended after a warning."""

    NOTIFY = "notify"
    SUSPEND = "suspend"


@frozen(kw_only=True)
class IdleSettings:
    """A job that does not use its GPUs is idle after ``after_s`` seconds, and suspended ``warning_s`` seconds later."""

    after_s: float = 1800.0
    action: IdleAction = IdleAction.NOTIFY
    warning_s: float = 600.0


@frozen(kw_only=True)
class Settings:
    """All settings. Jobs that name no pool go to ``gpu_pool``, or to ``cpu_pool`` if they have no GPUs.

    A session that does not say how long it may be unused is ended after ``idle_s`` seconds; None: never.
    """

    pools: Mapping[str, PoolSettings] = field(default_factory=lambda: {DEFAULT_POOL: PoolSettings()})
    gpu_pool: str = DEFAULT_POOL
    cpu_pool: str = DEFAULT_POOL
    idle: IdleSettings = IdleSettings()
    quotas: Quotas = field(default_factory=Quotas)
    idle_s: float | None = DEFAULT_IDLE_S
