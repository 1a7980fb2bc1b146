"""Whether anybody minds that a job does not use its GPUs."""

from typing import Any, Final

import click

from ebbtide_cli.submitting.topic import Given, Option

OPTIONS: Final[tuple[Option, ...]] = (
    click.option("--idle-ok", is_flag=True, help="Nobody is to mind if it does not use its GPUs for long."),
)


def fields(given: Given) -> dict[str, Any]:
    """The fields of a `JobSpec` that these options give."""
    return {"idle_ok": given["idle_ok"]}
