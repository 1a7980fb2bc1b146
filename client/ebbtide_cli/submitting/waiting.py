"""Define the options for what a job waits for before it may start: a time, and other jobs."""

import time
from typing import Any, Final

import click
from ebbtide_core.model.choices import JobId
from ebbtide_core.model.dependency import AfterKind, Dependency

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.values import parse_after


def _begin(text: str) -> float:
    from ebbtide_cli.times import parse_time

    return parse_time(text, time.time())


AFTER: Final = argument_type("after", parse_after)
BEGIN: Final = argument_type("begin", _begin)

TITLE: Final = "When it runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--after",
        metavar="[ok:|not-ok:]ID",
        type=AFTER,
        multiple=True,
        help=(
            "Start after this job or array has ended (ok: successfully, not-ok: not so); @ is the one that "
            "you submitted last."
        ),
    ),
    click.option(
        "--begin",
        "begin_at",
        metavar="TIME",
        type=BEGIN,
        help="Do not start before this time: 18:00, 2026-11-23T09:00, or +2h.",
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    after = dict.fromkeys(one for option in given["after"] for one in option)
    return {"after": tuple(Dependency(JobId(id), AfterKind(kind)) for id, kind in after)}
