"""Define the option that sends notifications about a job."""

from typing import Final

import click
from ebbtide_core.model.notice_rules import parse_rule

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.submitting.topic import Option

NOTICE: Final = argument_type("event=target", parse_rule)

TITLE: Final = "Output and notices"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--notify",
        metavar="EVENT[,EVENT]=TARGET",
        type=NOTICE,
        multiple=True,
        help=(
            "Send a notification of these events (started, suspended, unsaved, resumed, completed, failed, "
            "cancelled, ended, held, log, idle) to mailto:ADDRESS, https://HOOK, or a target named in the "
            "master's configuration."
        ),
    ),
)
