"""When a job runs: its standing among other jobs, its times, and what it waits for."""

from ebbtide_core.model import limits
from ebbtide_core.model.choices import JobClass
from ebbtide_core.model.dependency import Dependency
from ebbtide_core.model.frozen import part
from ebbtide_core.model.spec.halving import Asha
from ebbtide_core.model.spec_error import SpecError, check_number, check_text


@part
class SchedulingSpec:
    """What a policy goes by, and what holds a job back."""

    __slots__ = ()

    job_class: JobClass = JobClass.BEST_EFFORT
    """Whether FitGpp treats it as trial-and-error or as best-effort."""
    priority: int = limits.DEFAULT_PRIORITY
    """The higher, the sooner it runs under a policy that goes by priorities."""
    weight: float = 1.0
    """Its part under fair share, relative to others."""
    group: str = ""
    """The jobs of one group share one demand, with ``weight``, under fair share; empty: the job is a group of its
    own."""
    work_s: float | None = None
    """The work that the submitter declares, in seconds on one GPU; None: not known."""
    time_limit_s: float | None = None
    """Seconds of running time after which it is ended; None: never."""
    time_auto: bool = False
    """Whether it runs by reservations, from the history of its script (see `ebbtide_core.reserving`)."""
    after: tuple[Dependency, ...] = ()
    """The dependencies that have to be met before it starts."""
    begin_at: float = 0.0
    """The Unix time before which it does not start."""
    asha: Asha | None = None
    """How a task is compared with the others of its array, and goes on while it is among the best; None: it is not."""


def check_scheduling(asked: SchedulingSpec) -> None:
    """Raise `SpecError` for the first fault of what a policy would go by."""
    check_standing(asked.priority, asked.weight)
    check_text("--group", asked.group, limits.MAX_NAME_LENGTH)
    if asked.work_s is not None:
        check_number("work", asked.work_s, 0, limits.MAX_WORK_S, "s")
    if asked.time_limit_s is not None:
        check_number("--time", asked.time_limit_s, 1, limits.MAX_TIME_LIMIT_S, "s")
    check_number("--begin", asked.begin_at, 0, limits.MAX_BEGIN)
    if len(asked.after) > limits.MAX_DEPENDENCIES:
        raise SpecError("--after", f"{len(asked.after)} jobs are over the limit of {limits.MAX_DEPENDENCIES}")
    if asked.asha is not None:
        if fault := asked.asha.fault():
            raise SpecError("--asha", fault)
        check_text("--asha metric", asked.asha.metric, limits.MAX_METRIC_NAME)


def check_standing(priority: int, weight: float) -> None:
    """Raise `SpecError` unless a job may have ``priority`` and ``weight``."""
    check_number("--priority", priority, limits.MIN_PRIORITY, limits.MAX_PRIORITY)
    check_number("--weight", weight, limits.MIN_WEIGHT, limits.MAX_WEIGHT)
