"""Defines the request of a job, `JobSpec`, and refuses what no job may ask for.

The request is one flat record, here and on the wire. It inherits its fields from five parts, which stand in modules of
this package with the checks of each part alone; a function that needs one part takes that.
"""

from ebbtide_core.model.choices import WHOLE, LaunchMode, SuspendMode
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.spec.leaving import LeavingSpec, check_leaving
from ebbtide_core.model.spec.output import OutputSpec, check_output
from ebbtide_core.model.spec.program import ProgramSpec, check_program
from ebbtide_core.model.spec.resources import ResourceSpec, check_resources
from ebbtide_core.model.spec.scheduling import SchedulingSpec, check_scheduling
from ebbtide_core.model.spec_error import SpecError as SpecError

_ONCE = "means another attempt, and standard input, which is piped or redirected here, cannot be read a second time"
_WITHOUT_STDIN = "add </dev/null to do without standard input"


@frozen(kw_only=True)
class JobSpec(OutputSpec, ProgramSpec, LeavingSpec, SchedulingSpec, ResourceSpec):
    """A job as its user submitted it."""

    # The constructor has the fields of the last part first, and looks each argument up from the front: the simulator,
    # which creates millions, gives mostly resources and scheduling.


def validate(spec: JobSpec) -> None:
    """Raise `SpecError` for the first fault of ``spec``: of a part, or of parts that do not go together."""
    check_program(spec)
    check_resources(spec)
    if spec.launch is LaunchMode.DDP and spec.gpus_max < WHOLE:  # a job that may grow to whole GPUs is allowed
        raise SpecError("--launch ddp", "needs at least one whole GPU: it starts one process per GPU")
    check_scheduling(spec)
    check_leaving(spec)
    if spec.asha is not None and spec.suspend is not SuspendMode.CHECKPOINT:
        raise SpecError("--asha", f"pauses tasks, which need --suspend checkpoint for that, not {spec.suspend.value}")
    if spec.suspend is SuspendMode.SWAP:
        _check_swap(spec)
    check_output(spec)
    if spec.time_auto and spec.suspend is SuspendMode.NONE:
        raise SpecError(
            "--time auto", "needs a job that can be suspended at the end of a reservation: drop --suspend none"
        )
    if spec.kind.is_session:
        _check_session(spec)
    if spec.stdin:
        _check_stdin(spec)


def _check_swap(spec: JobSpec) -> None:
    """Refuse jobs that the driver cannot move to host memory, or not to another number of GPUs."""
    if not 0 < spec.gpus_min == spec.gpus_max <= WHOLE:
        raise SpecError("--suspend swap", "needs a job on one GPU or a share of one, neither more nor a range")
    if spec.launch is LaunchMode.DDP:
        raise SpecError("--suspend swap", "needs a job of one process: drop --launch ddp")


def _check_session(spec: JobSpec) -> None:
    """Check that a session is one process on one node, never suspended: no checkpoint has what its user typed."""
    if spec.suspend is not SuspendMode.NONE:
        raise SpecError("--suspend", f"a {spec.kind.value} cannot step aside: it has to be none")
    if spec.most_nodes > 1 or spec.launch is LaunchMode.DDP:
        raise SpecError("--nodes", f"a {spec.kind.value} is one process on one node")
    if spec.failover_after_s is not None:
        raise SpecError("--failover-after", f"a {spec.kind.value} cannot go on elsewhere")


def _check_stdin(spec: JobSpec) -> None:
    """Check that a job with standard input is one process with one attempt, because input can be read only once."""
    if spec.kind.is_session:
        raise SpecError("stdin", f"a {spec.kind.value} is not given standard input")
    if spec.suspend is not SuspendMode.NONE:
        raise SpecError("--suspend", f"{spec.suspend.value} {_ONCE}: it has to be none, or {_WITHOUT_STDIN}")
    if spec.retries:
        raise SpecError("--retries", f"{spec.retries} {_ONCE}: drop it, or {_WITHOUT_STDIN}")
    if spec.failover_after_s is not None:
        raise SpecError("--failover-after", f"{spec.failover_after_s:g}s {_ONCE}: drop it, or {_WITHOUT_STDIN}")
    if spec.most_nodes > 1:
        raise SpecError("--nodes", f"{spec.most_nodes} cannot share standard input: drop it, or {_WITHOUT_STDIN}")
    if spec.launch is LaunchMode.DDP:
        raise SpecError("--launch ddp", f"has processes that cannot share standard input: drop it, or {_WITHOUT_STDIN}")
