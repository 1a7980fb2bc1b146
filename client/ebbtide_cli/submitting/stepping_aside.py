"""Define the options for how long a job may run, how it steps aside, and how it resumes."""

from typing import Any, Final

import click
from ebbtide_core.model.choices import ExitZero, SignalTarget, SuspendMode
from ebbtide_protos.quantities import parse_duration

from ebbtide_cli.commands.verb import DURATION, argument_type
from ebbtide_cli.submitting.checks import resume_arguments, runs_script, stop_signal
from ebbtide_cli.submitting.topic import EnumChoice, Given, Option
from ebbtide_cli.terminal.output import complain

AUTO: Final = "auto"
TIME: Final = argument_type("time", lambda text: AUTO if text == AUTO else parse_duration(text))

TITLE: Final = "Suspend and resume"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--grace",
        "grace_s",
        metavar="TIME",
        type=DURATION,
        help="Grace period: time to checkpoint after the stop signal (default: 3m).",
    ),
    click.option(
        "--time",
        "time_limit",
        metavar="TIME|auto",
        type=TIME,
        help=("Limit of the running time, e.g. 2h; auto: reservations as long as earlier runs of the script suggest."),
    ),
    click.option(
        "--suspend",
        type=EnumChoice(SuspendMode),
        default="checkpoint",
        help=(
            "How the job is suspended: by a checkpoint (default); by a swap of its GPU memory to host "
            "memory, for a script that cannot save; or not at all (none)."
        ),
    ),
    click.option(
        "--exit0",
        "exit_zero",
        type=EnumChoice(ExitZero),
        default="suspended",
        help="What exit code 0 after the stop signal means, if the job did not say (default: suspended).",
    ),
    click.option(
        "--signal",
        metavar="NAME",
        default="SIGTERM",
        show_default=True,
        help="Stop signal, which asks the job to checkpoint.",
    ),
    click.option(
        "--signal-target",
        type=EnumChoice(SignalTarget),
        default="auto",
        help=(
            "Processes that get the stop signal: the topmost ones that handle it (auto, default), the "
            "launched one (leader), or all."
        ),
    ),
    click.option(
        "--resume-args",
        metavar="ARGS",
        default="",
        help=(
            "Arguments that are appended to the command when the job resumes, e.g. '--from {checkpoint}'; "
            "{output} stands for EBB_OUTPUT_DIR."
        ),
    ),
    click.option(
        "--move-checkpoints",
        is_flag=True,
        help="Copy the checkpoint to a node that cannot read it (default: wait for a node that can).",
    ),
    click.option(
        "--failover-after",
        "failover_after_s",
        metavar="TIME",
        type=DURATION,
        help=(
            "If the node is silent for this long, end the job there and resume it on another node (default: "
            "wait for the node)."
        ),
    ),
    click.option(
        "--warm/--no-warm",
        default=True,
        help=("Do the next process's imports before the job resumes, where that changes nothing else (default: yes)."),
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give; warn of a trap after which a script goes on."""
    limit = given["time_limit"]
    signal = stop_signal(given["signal"])
    if runs_script(given):
        from ebbtide_cli.submitting.mentions import returning_trap  # most jobs run none

        place = returning_trap(given, signal)
        if place:
            complain(
                f"{place}: this trap returns, so that the script goes on with its next command when the job is "
                "suspended: let the trap end with exit"
            )
    return {
        "time_limit_s": limit if isinstance(limit, float) else None,
        "time_auto": limit == AUTO,
        "signal": signal,
        "resume_args": resume_arguments(given["resume_args"]),
    }
