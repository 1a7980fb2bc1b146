"""Where a job goes."""

from typing import Any, Final

import click

from ebbtide_cli.submitting.topic import Given, Option

OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--pool", metavar="NAME", default="", help="Nodes that it goes to (default: as the master is set up)."
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """The fields of a `JobSpec` that these options give."""
    return {"pool": given["pool"]}
