"""Define the option that permits a job to leave its GPUs unused."""

from typing import Final

import click

from ebbtide_cli.submitting.topic import Option

TITLE: Final = "Suspend and resume"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--idle-ok", is_flag=True, help="Do not warn about the job, nor suspend it, when it leaves its GPUs unused."
    ),
)
