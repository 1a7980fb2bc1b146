"""Define the options that send the working directory as it is at submit."""

from pathlib import Path
from typing import Any, Final

import click
from ebbtide_core.model.workdir_snapshot import MAX_SNAPSHOT_BYTES

from ebbtide_cli.commands.verb import SIZE
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.credentials import is_this_machine
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.submitting.checks import working_directory
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.values import format_size

DEFAULT_LIMIT: Final = 200 * 2**20

TITLE: Final = "What runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--snapshot/--no-snapshot",
        default=None,
        help=(
            "Run in a copy of the working directory as it is now, on any node, without what .gitignore and "
            ".ebbignore name (default if the master is on another machine)."
        ),
    ),
    click.option(
        "--snapshot-limit", metavar="SIZE", type=SIZE, help="Refuse a copy that is larger than this (default: 200MiB)."
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    limit = given["snapshot_limit"]
    if limit is not None and limit > MAX_SNAPSHOT_BYTES:
        raise Failure(f"submit: --snapshot-limit: at most {format_size(MAX_SNAPSHOT_BYTES)}", USAGE)
    if not is_taken(given):
        return {"snapshot": None}
    from ebbtide_cli.snapshot.sending import take_snapshot

    root = Path(working_directory(given["workdir"]))
    return {"snapshot": take_snapshot(root, DEFAULT_LIMIT if limit is None else limit)}


def is_taken(given: Given) -> bool:
    """Whether the job begins with a copy of its working directory."""
    return bool(given["snapshot"]) if given["snapshot"] is not None else _is_elsewhere()


def _is_elsewhere() -> bool:
    """Whether the chosen master is on another machine, where a path of this one means nothing."""
    try:
        address = find_master(click.get_current_context().params.get("master"))
    except Failure:
        return False  # the submit itself reports the failure
    return not is_this_machine(address)
