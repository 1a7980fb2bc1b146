"""``ebb usage``: sum up which GPU time jobs had, and what became of it."""

import time
from typing import Any, Final

import click
from ebbtide_protos.v1 import usage_pb2

from ebbtide_cli.commands.verb import OneOf, examples, json_option, master_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import connected
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.terminal.text import format_time, plural, printable
from ebbtide_cli.times import days_between, parse_time
from ebbtide_cli.values import format_duration

DIMENSIONS: Final = ("user", "pool", "job", "day")
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
MAX_DAYS: Final = 999
"""The master's limit."""
COLUMNS: Final = ("JOBS", "GPU HOURS", "LOST", "UNKNOWN", "LEAVING", "IDLE", "WASTED", "WAITING", "SUSPENDED")


@click.command(epilog=examples("ebb usage", "ebb usage --since 30d --by user --by pool", "ebb usage --by day --json"))
@click.option(
    "--since",
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Count from this time on: 18:00, '2026-11-23 09:00', or e.g. 30d (ago).",
)
@click.option(
    "--until",
    metavar="TIME",
    default="now",
    show_default=True,
    help="Count up to this time: 18:00, '2026-11-23 09:00', or e.g. 30d (ago).",
)
@click.option("--user", metavar="NAME", default="", help="Count only this user's jobs.")
@click.option(
    "--by",
    type=OneOf(DIMENSIONS),
    multiple=True,
    default=("user",),
    help="Print a line for each user (default), pool, job or day; given twice, for each pair.",
)
@json_option
@master_option
def command(since: str, until: str, user: str, by: tuple[str, ...], as_json: bool, master: str | None) -> None:
    """Sum up GPU hours by user, and how much of them was lost, spent leaving, or idle.

    LOST is what was computed after the last checkpoint by attempts that failed, were killed or did not save. UNKNOWN is
    the same of attempts that may have saved by themselves. LEAVING is the time from the request to stop until the GPUs
    were free. IDLE is the running time in which no GPU was used. WASTED is LOST, LEAVING and IDLE. WAITING and
    SUSPENDED are hours of jobs.
    """
    dimensions = tuple(dict.fromkeys(by))
    edges = _edges(since, until, "day" in dimensions)
    request = usage_pb2.UsageRequest(edges=edges, by=dimensions, user=user)
    reply = _ask(request, master)
    for problem in reply.problems:
        complain(f"usage: the books are wrong, please report it: {problem}")
    if as_json:
        print_json(_facts(reply, dimensions, edges))
    else:
        _print(reply, dimensions, edges)


def _edges(since: str, until: str, days: bool) -> list[float]:
    now, edges = time.time(), []
    for option, text in (("--since", since), ("--until", until)):
        try:
            edges.append(parse_time(text, now, ago=True))
        except ValueError as error:
            raise Failure(f"usage: {option}: {error}", USAGE) from None
    if edges[0] >= edges[1]:
        raise Failure(f"usage: --since: {format_time(edges[0])} is not before {format_time(edges[1])}", USAGE)
    if not days:
        return edges
    if (count := round((edges[1] - edges[0]) / DAY_S)) > MAX_DAYS:
        raise Failure(f"usage: --since: {count} days are over the limit of {MAX_DAYS} for --by day", USAGE)
    return days_between(*edges)


def _ask(request: usage_pb2.UsageRequest, master: str | None) -> usage_pb2.UsageReply:
    with connected(master) as stub:
        *_, answer = stub.Usage(request)  # an older master says first how much it has read
        return answer


def _name(key: tuple[str, str], edges: list[float]) -> str:
    dimension, value = key
    if dimension == "day":
        return time.strftime("%Y-%m-%d", time.localtime(edges[int(value)]))
    return value


def _facts(reply: usage_pb2.UsageReply, dimensions: tuple[str, ...], edges: list[float]) -> dict[str, Any]:
    accounts = []
    for account in reply.accounts:
        keys = zip(dimensions, account.key, strict=True)
        accounts.append({key[0]: _name(key, edges) for key in keys} | _account_facts(account))
    gpus = {field.name: getattr(reply.gpus, field.name) for field in reply.gpus.DESCRIPTOR.fields}
    return {
        "since": edges[0],
        "until": reply.until,
        "known_since": reply.known_since or None,
        "by": list(dimensions),
        "accounts": accounts,
        "total": _account_facts(reply.total),
        "gpus": gpus,
        "foreign_gpu_s": dict(reply.foreign_gpu_s),
        "problems": list(reply.problems),
    }


def _account_facts(account: usage_pb2.UsageAccount) -> dict[str, Any]:
    return {field.name: getattr(account, field.name) for field in account.DESCRIPTOR.fields if field.name != "key"}


def _print(reply: usage_pb2.UsageReply, dimensions: tuple[str, ...], edges: list[float]) -> None:
    from ebbtide_cli.terminal.drawing import print_table

    rows = []
    for account in reply.accounts:
        keys = zip(dimensions, account.key, strict=True)
        rows.append((*(_name(key, edges) for key in keys), *_cells(account)))
    if not rows:
        print(f"No job between {format_time(edges[0])} and {format_time(reply.until)}.")
    else:
        if len(rows) > 1:
            rows.append(("all", *[""] * (len(dimensions) - 1), *_cells(reply.total)))
        print_table((*(dimension.upper() for dimension in dimensions), *COLUMNS), rows)
    if known := reply.gpus.known_gpu_s:
        print(f"\n{_gpus_words(reply.gpus, known)}")
    used = [f"{user or '?'} {format_duration(seconds)}" for user, seconds in sorted(reply.foreign_gpu_s.items())]
    if used:
        print(printable(f"GPU time past the cluster: {', '.join(used)}"))
    if edges[0] < reply.known_since:
        print(f"Jobs that had ended before {format_time(reply.known_since)} are forgotten, and not counted.")


def _cells(account: usage_pb2.UsageAccount) -> tuple[str, ...]:
    wasted = f" ({account.wasted_gpu_s / account.allocated_gpu_s:.0%})" if account.wasted_gpu_s else ""
    return (
        str(account.jobs),
        _hours(account.allocated_gpu_s),
        _hours(account.lost_gpu_s),
        _hours(account.unknown_gpu_s),
        _hours(account.leaving_gpu_s),
        _hours(account.idle_gpu_s),
        _hours(account.wasted_gpu_s) + wasted,
        _hours(account.waiting_s),
        _hours(account.suspended_s),
    )


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.2f}" if seconds else "-"


def _gpus_words(gpus: usage_pb2.GpuUsage, known: float) -> str:
    """Say how the time of all GPUs was spent."""
    parts = (
        ("allocated", gpus.allocated_gpu_s),
        ("idle", gpus.idle_gpu_s),
        ("with foreign processes", gpus.foreign_gpu_s),
        ("unavailable", gpus.unavailable_gpu_s),
    )
    spent = ", ".join(f"{seconds / known:.0%} {what}" for what, seconds in parts if seconds)
    return f"{plural(gpus.gpus, 'GPU')}, {known / HOUR_S:.2f} hours: {spent}"
