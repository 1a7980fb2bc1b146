"""Read a supply for a simulation: what is to be borrowed, and what is assumed of the lender."""

from pathlib import Path
from typing import Any

from ebbtide_protos.quantities import parse_duration
from ebbtide_sim.borrowing import LenderAssumptions, SimulatedSupply
from ebbtide_sim.workloads.nodes import SimNode

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.supplying.settings import SupplyTable, names, read

ASSUMED = ("queue", "preempted_after", "notice", "price")
"""The fields of ``[supply.NAME.assumed]``."""


def read_supply(where: str) -> SimulatedSupply:
    """Read ``FILE``, or ``FILE:NAME`` if the file has several supplies. Raises `Failure`."""
    path, name = _named(where)
    found = read(path, name)
    node = SimNode(
        name=name,
        gpus=found.gpus,
        gpu_mem_bytes=found.gpu_mem_bytes,
        cpus=found.cpus,
        mem_bytes=found.offered_bytes,
        model=found.gpu_type,
    )
    table = SupplyTable(dict(found.assumed), f"supply: {path}: [supply.{name}.assumed]")
    after = table.take("preempted_after", str, "")
    try:
        lender = LenderAssumptions(
            queue_s=_times(table, "queue"),
            preempted_after_s=parse_duration(after) if after else None,
            notice_s=table.read("notice", parse_duration, "30s"),
            price=_number(table, "price"),
        )
    except ValueError as error:
        raise Failure(f"{table.where} {error}", USAGE) from None
    table.check_empty(ASSUMED)
    return SimulatedSupply(
        name=name,
        settings=found.settings,
        node=node,
        time_s=found.time_s,
        after_s=found.after_s,
        idle_s=found.idle_s,
        lender=lender,
    )


def _named(where: str) -> tuple[Path, str]:
    path, name = Path(where), ""
    if not path.exists() and ":" in where:
        file, _, name = where.rpartition(":")
        path = Path(file)
    path = path.expanduser().absolute()
    if name:
        return path, name
    there = names(path)
    if len(there) != 1:
        few = ", ".join(there) or "none"
        raise Failure(f"--supply: {where} has {few}: name one of them, as FILE:NAME", USAGE)
    return path, there[0]


def _times(table: SupplyTable, field: str) -> tuple[float, ...]:
    """Return a field that is a duration or a list of them, in seconds."""
    value: Any = table.take(field, object, "0s")
    times = value if isinstance(value, list) else [value]
    if not all(isinstance(time, str) for time in times):
        raise ValueError(f'{field}: {value!r} is neither a duration, such as "10m", nor a list of them')
    try:
        return tuple(parse_duration(time) for time in times)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _number(table: SupplyTable, field: str) -> float:
    value: Any = table.take(field, object, 0.0)
    if not isinstance(value, int | float):
        raise ValueError(f"{field}: {value!r} is not a number")
    return float(value)
