"""Define the options for a job's class, priority and share."""

from typing import Any, Final

import click
from ebbtide_core.model import limits
from ebbtide_core.model.choices import JobClass

from ebbtide_cli.submitting.topic import Given, Option

TITLE: Final = "When it runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--te/--be",
        "urgent",
        help=(
            "Class of the job: trial-and-error, which should start at once, or best-effort (default), which "
            "may be preempted."
        ),
    ),
    click.option(
        "--priority",
        type=click.IntRange(limits.MIN_PRIORITY, limits.MAX_PRIORITY),
        default=limits.DEFAULT_PRIORITY,
        show_default=True,
        help="Priority; a lower number is more urgent.",
    ),
    click.option("--weight", type=float, default=1.0, help="Weight under fair-share and tide (default: 1)."),
    click.option(
        "--group", metavar="NAME", default="", help="Group of jobs that have one share together under fair-share."
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    return {"job_class": JobClass.TRIAL_AND_ERROR if given["urgent"] else JobClass.BEST_EFFORT}
