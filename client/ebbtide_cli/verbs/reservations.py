"""``ebb reservations``: list which GPUs are reserved for which user, and when."""

from typing import Any, Final

import click
from ebbtide_protos.v1 import booking_pb2

from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_time
from ebbtide_cli.values import format_duration

TITLES: Final = ("ID", "USER", "START", "FOR", "STATE", "GPUS", "NOW ON THEM", "NOTE")
CELLS: Final = 48
"""Columns of a timeline's bar."""


@click.command(epilog=examples("ebb reservations", "ebb reservations --timeline", "ebb reservations --json"))
@click.option("--timeline", is_flag=True, help="Draw a line for each GPU, from now to the end of the last reservation.")
@json_option
@master_option
def command(timeline: bool, as_json: bool, master: str | None) -> None:
    """List current and future reservations of GPUs; 'ebb reserve-gpus' makes and cancels them."""
    with connected(master) as stub:
        reply = ask(stub.ListReservations, booking_pb2.ListReservationsRequest())
    if as_json:
        print_json([reservation_facts(found) for found in reply.reservations])
    elif not reply.reservations:
        print("No GPU is reserved.")
    elif timeline:
        _print_timeline(reply)
    else:
        from ebbtide_cli.terminal.drawing import print_table

        print_table(TITLES, map(_row, reply.reservations))


def reservation_facts(found: booking_pb2.Reservation) -> dict[str, Any]:
    """Return all facts on one reservation."""
    return {
        "id": found.reservation_id,
        "user": found.user,
        "by": found.by or None,
        "start": found.start,
        "end": found.end,
        "state": found.state,
        "note": found.note or None,
        "gpus": [
            {"node": gpu.node, "uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "job_ids": list(gpu.job_ids)}
            for gpu in found.gpus
        ],
    }


def gpus_words(found: booking_pb2.Reservation) -> str:
    """Format the GPUs by node: ``ws1:0,1 ws2:3``."""
    nodes = dict.fromkeys(gpu.node for gpu in found.gpus)
    of = {node: ",".join(str(gpu.index) for gpu in found.gpus if gpu.node == node) for node in nodes}
    return " ".join(f"{node}:{indexes}" for node, indexes in of.items())


def _row(found: booking_pb2.Reservation) -> tuple[str, ...]:
    jobs = sorted({id for gpu in found.gpus for id in gpu.job_ids})
    return (
        found.reservation_id,
        found.user,
        format_time(found.start),
        format_duration(found.end - found.start),
        found.state,
        gpus_words(found),
        f"job {', '.join(jobs)}" if jobs else "-",
        found.note,
    )


def _print_timeline(reply: booking_pb2.ListReservationsReply) -> None:
    """Print a line for each GPU, in which a reservation is a row of its number's last digit."""
    from ebbtide_cli.terminal.drawing import print_columns

    last = max(found.end for found in reply.reservations)
    cell = (last - reply.now) / CELLS
    lines: dict[tuple[str, int], list[str]] = {}
    for found in reply.reservations:
        for gpu in found.gpus:
            line = lines.setdefault((gpu.node, gpu.index), ["·"] * CELLS)
            start = max(0, int((found.start - reply.now) / cell))
            end = max(start + 1, round((found.end - reply.now) / cell))
            for place in range(start, min(end, CELLS)):
                line[place] = found.reservation_id[-1]
    print(f"from {format_time(reply.now)} to {format_time(last)}, {format_duration(cell)} each")
    print_columns((f"{node}:{index}", "".join(line)) for (node, index), line in sorted(lines.items()))
    print_columns(
        (found.reservation_id, found.user, f"{format_time(found.start)} to {format_time(found.end)}")
        for found in reply.reservations
    )
