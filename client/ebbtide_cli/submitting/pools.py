"""Define the option that chooses a job's pool."""

from typing import Final

import click

from ebbtide_cli.submitting.topic import Option

TITLE: Final = "Where it runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--pool", metavar="NAME", default="", help="Pool of nodes to run in (default: as the master is configured)."
    ),
)
