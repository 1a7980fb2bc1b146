"""How a job leaves its GPUs: how it is asked to, what its exit means, and whether it comes back."""

from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.choices import ExitZero, SignalTarget, SuspendMode
from ebbtide_core.model.frozen import part
from ebbtide_core.model.spec_error import SpecError, check_number

STOP_SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")


@part
class LeavingSpec:
    """How an attempt of a job ends before its work is done."""

    __slots__ = ()

    suspend: SuspendMode = SuspendMode.CHECKPOINT
    """How it is suspended, if it can be."""
    grace_s: float = limits.DEFAULT_GRACE_S
    """Seconds between the stop signal and SIGKILL."""
    signal: str = "SIGTERM"
    """The name of the stop signal."""
    signal_target: SignalTarget = SignalTarget.AUTO
    """Which of its processes get the stop signal."""
    exit_zero: ExitZero = ExitZero.SUSPENDED
    """What exit code 0 means after a stop signal that the job did not acknowledge: suspended, or done."""
    retries: int = 0
    """How often it starts again after it failed."""
    move_checkpoints: bool = False
    """Whether its newest checkpoint is copied to nodes that cannot read it (see
    `ebbtide_core.resources.checkpoint_location`)."""
    failover_after_s: float | None = None
    """Seconds without word from the master after which it ends itself, and goes on elsewhere; None: never (see
    `ebbtide_core.nodes.silence`)."""
    idle_ok: bool = False
    """Whether it never counts as idle (see `ebbtide_core.lifecycle.idling`)."""
    idle_limit_s: float | None = None
    """Seconds after which a session is ended that no user uses and that computes nothing; None: never."""


def check_leaving(asked: LeavingSpec) -> None:
    """Raise `SpecError` for the first fault of how the job is to leave."""
    check_number("--grace", asked.grace_s, 0, limits.MAX_GRACE_S, "s")
    check_number("--retries", asked.retries, 0, limits.MAX_RETRIES)
    if asked.idle_limit_s is not None:
        check_number("--idle", asked.idle_limit_s, limits.MIN_IDLE_S, limits.MAX_TIME_LIMIT_S, "s")
    if asked.failover_after_s is not None:
        _check_failover(asked.failover_after_s, asked.grace_s)
    if asked.signal not in STOP_SIGNALS:
        from ebbtide_core.model.spelling import none_of  # most signals are right

        raise SpecError("--signal", none_of(asked.signal, STOP_SIGNALS))


def _check_failover(after_s: float, grace_s: float) -> None:
    shortest = grace_s + limits.LEASE_MARGIN_S
    if not shortest < after_s <= limits.MAX_TIME_LIMIT_S:
        raise SpecError(
            "--failover-after",
            f"{after_s:g}s is not between {shortest:g}s, the grace period and "
            f"{limits.LEASE_MARGIN_S:g}s more, and {limits.MAX_TIME_LIMIT_S:g}s",
        )
