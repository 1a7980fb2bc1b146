"""``ebb explain``: say why a job waits, when it may start, and what a change would bring."""

import time
from collections.abc import Sequence
from typing import Any, Final

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.commands.verb import SETTING, examples, id_argument, json_option, master_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_time, plural, printable
from ebbtide_cli.values import format_duration, parse_gpus

CHANGES: Final = ("priority", "weight", "pool", "gpus")


@click.command(
    epilog=examples(
        "ebb explain 17",
        "ebb explain 17 --what-if priority=10",
        "ebb explain 17 --what-if gpus=1-4 --what-if weight=2 --json",
    )
)
@id_argument
@click.option(
    "--what-if",
    "changes",
    metavar="K=V",
    type=SETTING,
    multiple=True,
    help=f"Say when it would start with another {', '.join(CHANGES[:-1])} or number of {CHANGES[-1]}; nothing changes.",
)
@json_option
@master_option
def command(job_id: str, changes: tuple[tuple[str, str], ...], as_json: bool, master: str | None) -> None:
    """Say why a job waits: what it needs, which jobs are before it, what each node has, and when it may start.

    The start is forecast on a copy of the cluster under the same policy: running jobs end as their progress, earlier
    runs or time limits suggest, and no new jobs are submitted.
    """
    request = _request(job_id, changes)
    with connected(master) as stub:
        explanation = ask(stub.Explain, request)
    if as_json:
        print_json(_facts(explanation))
    else:
        _print(explanation, [f"{key}={value}" for key, value in changes])


def _request(job_id: str, changes: Sequence[tuple[str, str]]) -> client_pb2.ExplainRequest:
    request = client_pb2.ExplainRequest(job_id=job_id)
    for key, text in changes:
        try:
            _set(request, key, text)
        except ValueError as error:
            raise Failure(f"explain: --what-if {key}: {error}", USAGE) from None
    return request


def _set(request: client_pb2.ExplainRequest, key: str, text: str) -> None:
    match key:
        case "priority":
            request.priority = int(text)
        case "weight":
            request.weight = float(text)
        case "pool":
            request.pool = text
        case "gpus":
            wanted = parse_gpus(text)
            for field, share in ((request.gpus_min, wanted.low), (request.gpus_max, wanted.high)):
                field.CopyFrom(job_pb2.Share(numerator=share.numerator, denominator=share.denominator))
        case _:
            raise ValueError(f"is none of {', '.join(CHANGES)}")


def _facts(explanation: client_pb2.Explanation) -> dict[str, Any]:
    return {
        "id": explanation.job_id,
        "state": explanation.state,
        "reason": explanation.reason,
        "pool": explanation.pool or "default",
        "needs": explanation.needs,
        "ahead": explanation.ahead if explanation.HasField("ahead") else None,
        "nodes": [
            {"node": view.node, "idle_gpus": view.idle_gpus, "gpus": view.gpus, "obstacle": view.obstacle or None}
            for view in explanation.nodes
        ],
        "room_at": explanation.room_at if explanation.HasField("room_at") else None,
        "basis": explanation.basis or None,
        "remaining_s": explanation.remaining_s if explanation.HasField("remaining_s") else None,
        "remaining_from": explanation.remaining_from or None,
        "stays": [
            {
                "jobs": list(stays.job_ids),
                "count": stays.jobs,
                "reason": stays.reason,
                "until": stays.until if stays.HasField("until") else None,
            }
            for stays in explanation.stays
        ],
        "supplies": [
            {
                "supply": supply.name,
                "coming": supply.coming,
                "since": supply.since or None,
                "reason": supply.reason or None,
                "not_asking": supply.not_asking or None,
            }
            for supply in explanation.supplies
        ],
        "forecast": _forecast(explanation.forecast) if explanation.HasField("forecast") else None,
        "what_if": _forecast(explanation.what_if) if explanation.HasField("what_if") else None,
        "no_effect": explanation.no_effect or None,
    }


def _forecast(seen: client_pb2.Forecast) -> dict[str, Any]:
    return {
        "start_at": seen.start_at if seen.HasField("start_at") else None,
        "basis": seen.basis,
        "after": list(seen.after),
        "preempts": list(seen.preempts),
        "nodes": list(seen.nodes),
    }


def _print(explanation: client_pb2.Explanation, changes: Sequence[str]) -> None:
    from ebbtide_cli.terminal.drawing import print_table

    why = f": {explanation.reason}" if explanation.reason else ""  # others' reasons are not always shown
    print(printable(f"Job {explanation.job_id} is {explanation.state}{why}"))
    print(printable(f"It needs {explanation.needs}."))
    if explanation.HasField("remaining_s"):
        left = format_duration(explanation.remaining_s)
        print(printable(f"It has {left} of work on one GPU left ({explanation.remaining_from})."))
    if explanation.HasField("ahead"):
        print(printable(f"Before it in the queue: {explanation.ahead}."))
        print(printable(f"Room for it: {_in_about(explanation, 'room_at')}{explanation.basis}."))
    for stays in explanation.stays:
        print(printable(_stays_in_words(stays)))
    for supply in explanation.supplies:
        print(printable(_supply_in_words(supply)))
    if explanation.HasField("forecast"):
        print(printable(f"It starts: {_in_words(explanation.forecast)}."))
    if explanation.HasField("what_if"):
        print(printable(f"With {' and '.join(changes)}, it would start: {_in_words(explanation.what_if)}."))
    if explanation.no_effect:
        print(printable(f"{explanation.no_effect[0].upper()}{explanation.no_effect[1:]}."))
    if explanation.nodes:
        print_table(
            ("NODE", "IDLE GPUS", "IN THE WAY"),
            [(view.node, f"{view.idle_gpus} of {view.gpus}", view.obstacle or "nothing") for view in explanation.nodes],
        )


def _stays_in_words(stays: client_pb2.Stays) -> str:
    named, more = list(stays.job_ids), stays.jobs - len(stays.job_ids)
    *others, last = [*named, f"{more} more"] if more else named
    who = f"Jobs {', '.join(others)} and {last}" if others else f"Job {last}"
    verb = "are" if others else "is"
    if stays.HasField("until"):
        return f"{who} {verb} spared until {format_time(stays.until)} ({stays.reason})."
    return f"{who} {verb} not asked to step aside: {stays.reason}."


def _supply_in_words(supply: client_pb2.SupplyStatus) -> str:
    said = []
    if supply.coming:
        ago = format_duration(max(0.0, time.time() - supply.since))
        why = f" ({supply.reason})" if supply.reason else ""
        said.append(f"has asked for {plural(supply.coming, 'node')}, for the first one {ago} ago{why}")
    if supply.not_asking:
        said.append(f"asks for no {'more' if supply.coming else 'node'}: {supply.not_asking}")
    return f"Supply {supply.name} {'; it '.join(said) or 'has asked for no node'}."


def _in_about(message: client_pb2.Explanation | client_pb2.Forecast, field: str) -> str:
    if not message.HasField(field):  # type: ignore[arg-type]  # two kinds of message, each with its own names
        return ""
    wait = getattr(message, field) - time.time()
    return f"in about {format_duration(wait)}, " if wait > 1 else ""


def _in_words(seen: client_pb2.Forecast) -> str:
    if not seen.HasField("start_at"):
        return seen.basis
    when = _in_about(seen, "start_at") or "now, "
    where = f" on node {', '.join(seen.nodes)}" if seen.nodes else ""
    gone = [id for id in seen.after if id not in seen.preempts]
    first = f"; job {', '.join(gone)} has to end first" if gone else ""
    asked = f"; it would preempt job {', '.join(seen.preempts)}" if seen.preempts else ""
    return f"{when}{seen.basis}{where}{first}{asked}"
