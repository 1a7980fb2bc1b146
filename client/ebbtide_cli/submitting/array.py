"""Define the options that submit an array of jobs and limit how many of them run at a time."""

from collections.abc import Sequence
from typing import Final

import click
from ebbtide_core.model import limits

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.values import parse_array

ARRAY: Final = argument_type("array", parse_array)

TITLE: Final = "Arrays and sweeps"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--array",
        metavar="INDICES[%N]",
        type=ARRAY,
        help=(
            "Submit one task for each index, which is in EBB_ARRAY_INDEX: 0-9, or 0,3,7-9; 0-9%2 runs at "
            "most 2 at a time."
        ),
    ),
    click.option(
        "--max-concurrent",
        metavar="N",
        type=click.IntRange(1, limits.MAX_ARRAY_TASKS),
        help="Number of the array's tasks that may run at a time.",
    ),
    click.option(
        "--max-slots",
        metavar="N",
        type=click.IntRange(1, limits.MAX_GPUS),
        help="Number of GPUs that the array's tasks may hold at a time.",
    ),
)


def array_limits(given: Given) -> dict[str, int]:
    """Return how many tasks, and how many of their GPUs, may run at a time, by the request's fields; 0: all."""
    _, most = given["array"] or ((), 0)
    if most and given["max_concurrent"]:
        raise Failure(f"submit: --max-concurrent: the array has a limit already: %{most}", USAGE)
    return {"max_concurrent": most or given["max_concurrent"] or 0, "max_slots": given["max_slots"] or 0}


def indices(given: Given) -> Sequence[int]:
    """Return the indices of ``--array``."""
    return given["array"][0] if given["array"] else ()
