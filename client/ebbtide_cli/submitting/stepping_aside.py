"""Define the options for how long a job may run, how it steps aside, and how it resumes."""

from typing import Any, Final

import click
from ebbtide_core.model.types import ExitZero, SignalTarget, SuspendMode
from ebbtide_protos.quantities import parse_duration

from ebbtide_cli.submitting.checks import resume_arguments, stop_signal
from ebbtide_cli.submitting.topic import EnumChoice, Given, Option
from ebbtide_cli.verb import DURATION, argument_type

AUTO: Final = "auto"
TIME: Final = argument_type("time", lambda text: AUTO if text == AUTO else parse_duration(text))

OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--grace", "grace_s", metavar="TIME", type=DURATION, help="To checkpoint after the stop signal (default: 3m)."
    ),
    click.option(
        "--time",
        "time_limit",
        metavar="TIME|auto",
        type=TIME,
        help="Limit of running time, e.g. 2h; auto: reservations by what earlier runs took.",
    ),
    click.option(
        "--suspend",
        type=EnumChoice(SuspendMode),
        default="checkpoint",
        help="How it steps aside: it checkpoints (default); the driver swaps its GPU memory to host memory, for a "
        "script that cannot save; or it never does and is not preempted.",
    ),
    click.option(
        "--exit0",
        "exit_zero",
        type=EnumChoice(ExitZero),
        default="suspended",
        help="What exit 0 after a stop signal means if nothing else tells (default: suspended).",
    ),
    click.option("--signal", metavar="NAME", default="SIGTERM", show_default=True, help="Sent to make it stop."),
    click.option(
        "--signal-target",
        type=EnumChoice(SignalTarget),
        default="auto",
        help="Who gets it: the topmost processes that handle it (default), what was launched, or every process.",
    ),
    click.option(
        "--resume-args",
        metavar="ARGS",
        default="",
        help="Appended to the command when it resumes, e.g. '--from {checkpoint}'; {output} stands for EBB_OUTPUT_DIR.",
    ),
    click.option(
        "--move-checkpoints",
        is_flag=True,
        help="Where it cannot read its checkpoint, copy it there first (default: wait for a node that can).",
    ),
    click.option(
        "--failover-after",
        "failover_after_s",
        metavar="TIME",
        type=DURATION,
        help="Where its node is silent for so long, end it there and go on elsewhere (default: wait for the node).",
    ),
    click.option(
        "--warm/--no-warm",
        default=True,
        help="Have its next process's imports done before it resumes, where that changes nothing else (default: yes).",
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    limit = given["time_limit"]
    return {
        "time_limit_s": limit if isinstance(limit, float) else None,
        "time_auto": limit == AUTO,
        "signal": stop_signal(given["signal"]),
        "resume_args": resume_arguments(given["resume_args"]),
    }
