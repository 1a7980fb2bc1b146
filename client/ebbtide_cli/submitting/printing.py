"""Define the options for a job's output."""

from typing import Final

import click
from ebbtide_core.model.log_rules import parse_rule

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.submitting.topic import Option

LOG_RULE: Final = argument_type("regex=action", parse_rule)

TITLE: Final = "Output and notices"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--output",
        metavar="FILE",
        default="",
        help=(
            "Append the output to this file on the job's node, too; %j stands for the job's id, %x for its "
            "name, %N for the node, %A and %a for the array and the index in it. slurm: use Slurm's name for "
            "it."
        ),
    ),
    click.option(
        "--prefix-ranks", is_flag=True, help="Begin each line of output with the rank that printed it (--launch ddp)."
    ),
    click.option(
        "--on-log",
        "log_rules",
        metavar="REGEX=ACTION",
        type=LOG_RULE,
        multiple=True,
        help="Act on output lines that match: notify, no-retry, exclude-gpu, exclude-node, or ignore.",
    ),
)
