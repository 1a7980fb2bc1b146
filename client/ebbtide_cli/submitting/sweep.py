"""Run one command with many values: one task of an array for each combination of them, or for some."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import click
from ebbtide_core.model.limits import MAX_ARRAY_TASKS
from ebbtide_core.model.spec.program import ProgramSpec
from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.array import indices
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.terminal.output import complain
from ebbtide_cli.values import parse_param

PARAM: Final = argument_type("param", parse_param)
Values = Mapping[str, str]
"""A task's values, by the name of the param."""

TITLE: Final = "Arrays and sweeps"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--param",
        "params",
        metavar="NAME=V,V,…",
        type=PARAM,
        multiple=True,
        help=(
            "Submit a task for each value, or each combination if several params are given; the value is "
            "{NAME} in the command, and in EBB_PARAM_NAME."
        ),
    ),
    click.option(
        "--param-file",
        metavar="FILE.csv",
        type=click.Path(exists=True, dir_okay=False),
        help="Submit a task for each row of this file; its first row has the names.",
    ),
    click.option(
        "--sample", metavar="N", type=click.IntRange(1), help="Submit only N of the combinations, drawn at random."
    ),
    click.option(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="Random seed for --sample; the same seed draws the same combinations.",
    ),
)


@dataclass(frozen=True, slots=True)
class ParameterGrid:
    """All combinations of one element of each of the ``axes``; the last axis varies fastest."""

    axes: Sequence[Sequence[Values]]

    @property
    def size(self) -> int:
        """The number of combinations."""
        return prod(len(axis) for axis in self.axes)

    def __getitem__(self, index: int) -> Values:
        """Return the combination with this index."""
        chosen: dict[str, str] = {}
        for axis in reversed(self.axes):
            index, place = divmod(index, len(axis))
            chosen = {**axis[place], **chosen}
        return chosen


def values_of(given: Given) -> list[Values]:
    """Return the values of each task; empty without ``--param``. `Failure` names what is wrong."""
    sweep = ParameterGrid(list(_axes(given)))
    if not sweep.axes:
        if given["sample"]:
            raise Failure("submit: --sample: is a number of combinations of --param", USAGE)
        return []
    _check_names([name for axis in sweep.axes for name in axis[0]])
    wanted = min(given["sample"] or sweep.size, sweep.size)
    if wanted > MAX_ARRAY_TASKS:
        raise Failure(f"submit: --param: {wanted} tasks are over the limit of {MAX_ARRAY_TASKS}: see --sample", USAGE)
    chosen = range(wanted) if wanted == sweep.size else _drawn(sweep.size, wanted, given["seed"])
    return [sweep[index] for index in chosen]


def _drawn(size: int, wanted: int, seed: int) -> Sequence[int]:
    """Return so many indices below ``size``, in order; the same ones for the same ``seed``."""
    import random  # most jobs draw nothing

    draw = random.Random(seed)
    if size <= sys.maxsize:
        return sorted(draw.sample(range(size), wanted))
    found: set[int] = set()  # a longer range has no length, which `sample` asks for
    while len(found) < wanted:
        found.add(draw.randrange(size))
    return sorted(found)


def array_tasks(given: Given, program: ProgramSpec) -> list[client_pb2.ArrayTask]:
    """Return the tasks of ``--array``, or of a sweep, and warn of params that the program does not mention."""
    chosen = values_of(given)
    if chosen and indices(given):
        raise Failure("submit: --param: not together with --array", USAGE)
    for name in unused(list(chosen[0]) if chosen else [], program.command, program.script):
        complain(f"warning: {{{name}}} is not in the command: the job finds it as EBB_PARAM_{name.upper()} only")
    if chosen:
        return [client_pb2.ArrayTask(index=index, params=values) for index, values in enumerate(chosen)]
    return [client_pb2.ArrayTask(index=index) for index in indices(given)]


def print_sweep(tasks: Sequence[client_pb2.ArrayTask]) -> None:
    """Print the values of each task of a sweep."""
    if not tasks or not tasks[0].params:
        return
    from ebbtide_cli.terminal.drawing import print_list

    names = sorted(tasks[0].params)
    rows = ((str(task.index), *(task.params[name] for name in names)) for task in tasks)
    print_list(("INDEX", *(name.upper() for name in names)), rows)


def unused(names: Sequence[str], command: Sequence[str], script: str) -> list[str]:
    """Return the params that neither the command nor the script mentions."""
    return [
        name
        for name in names
        if f"EBB_PARAM_{name.upper()}" not in script
        and not any(f"{{{name}}}" in word or f"EBB_PARAM_{name.upper()}" in word for word in command)
    ]


def params_of(tasks: Iterable[client_pb2.ArrayTask]) -> list[dict[str, str]] | None:
    """Return the values of each task; None if there is no sweep."""
    return [dict(task.params) for task in tasks if task.params] or None


def _check_names(names: Sequence[str]) -> None:
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise Failure(f"submit: --param: {abbreviated(twice)} is given twice", USAGE)


def _axes(given: Given) -> Iterator[list[Values]]:
    if given["param_file"]:
        yield list(_rows(given["param_file"]))
    for name, values in given["params"]:
        yield [{name: value} for value in values]


def _rows(path: str) -> Iterator[Values]:
    """Yield the rows of a CSV file as values by name."""
    import csv

    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Failure(f"submit: --param-file: {path}: {error}", USAGE) from None
    names = [name.strip() for name in rows[0]] if rows else []
    if len(rows) < 2:
        raise Failure(f"submit: --param-file: {path}: has no rows below the one with the names", USAGE)
    _check_names(names)
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise Failure(f"submit: --param-file: {path}:{number}: has {len(row)} values for {len(names)} names", USAGE)
        yield dict(zip(names, (value.strip() for value in row), strict=True))
