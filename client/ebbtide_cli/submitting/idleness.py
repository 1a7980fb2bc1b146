"""Whether anybody minds that a job does not use its GPUs."""

from typing import Any, Final

import click

from ebbtide_cli.submitting.topic import Given, Option

OPTIONS: Final[tuple[Option, ...]] = (
    click.option("--idle-ok", is_flag=True, help="Do not warn of it, or suspend it, when it leaves its GPUs unused."),
)


def fields(given: Given) -> dict[str, Any]:
    """The fields of a `JobSpec` that these options give."""
    return {"idle_ok": given["idle_ok"]}
