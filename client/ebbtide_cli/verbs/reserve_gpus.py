"""``ebb reserve-gpus``: reserve GPUs for one user, from one time to another."""

import time

import click
from ebbtide_protos.v1 import booking_pb2

from ebbtide_cli.commands.verb import DURATION, examples, json_option, master_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_time, plural, printable
from ebbtide_cli.times import parse_time
from ebbtide_cli.values import MAX_GPUS
from ebbtide_cli.verbs.reservations import gpus_words, reservation_facts


@click.command(
    epilog=examples(
        "ebb reserve-gpus --gpus 2 --for 4h",
        "ebb reserve-gpus --gpus 1 --start 18:00 --for 4h --user anna --note 'demo for the visitors'",
        "ebb reserve-gpus --cancel 3",
    )
)
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1, MAX_GPUS),
    help="Number of whole GPUs to reserve (required, like --for).",
)
@click.option(
    "--node", metavar="NAME", default="", help="Node to reserve all GPUs on (default: any nodes, as few as possible)."
)
@click.option("--gpu-type", metavar="TEXT", default="", help="Reserve only GPUs whose model has this word, e.g. a100.")
@click.option(
    "--start",
    metavar="TIME",
    default="now",
    show_default=True,
    help="Begin: 18:00, '2026-11-23 09:00', or 2h from now.",
)
@click.option("--for", "length", metavar="TIME", type=DURATION, help="Length of the reservation, e.g. 4h.")
@click.option("--user", metavar="NAME", default="", help="User whose jobs may use the GPUs (default: you).")
@click.option("--note", metavar="TEXT", default="", help="Purpose, which others can read.")
@click.option("--cancel", metavar="ID", default="", help="Cancel this reservation.")
@json_option
@master_option
def command(
    gpus: int | None,
    node: str,
    gpu_type: str,
    start: str,
    length: float | None,
    user: str,
    note: str,
    cancel: str,
    as_json: bool,
    master: str | None,
) -> None:
    """Reserve GPUs for one user's jobs from one time to another, or cancel a reservation.

    The GPUs are chosen now. Until the start, others' jobs may use them if they can leave in time: jobs that can be
    suspended are, with their grace period; others need a time limit. 'ebb reservations' lists reservations.
    """
    if cancel:
        if gpus is not None or length is not None:
            raise Failure("reserve-gpus: --cancel: not together with --gpus or --for", USAGE)
        with connected(master) as stub:
            unwanted = booking_pb2.CancelReservationRequest(reservation_id=cancel, by=user_name())
            _print(ask(stub.CancelReservation, unwanted), as_json, " is cancelled")
        return
    if gpus is None or length is None:
        raise Failure(f"reserve-gpus: {'--gpus' if gpus is None else '--for'}: is missing", USAGE)
    since = _start(start)
    request = booking_pb2.ReserveGpusRequest(
        user=user or user_name(),
        by=user_name(),
        gpus=gpus,
        start=since,
        end=since + length,
        node=node,
        gpu_type=gpu_type,
        note=note,
    )
    with connected(master) as stub:
        _print(ask(stub.ReserveGpus, request), as_json)


def _start(text: str) -> float:
    try:
        return parse_time(text, time.time())
    except ValueError as error:
        raise Failure(f"reserve-gpus: --start: {error}", USAGE) from None


def _print(found: booking_pb2.Reservation, as_json: bool, what: str = "") -> None:
    if as_json:
        print_json(reservation_facts(found))
        return
    when = f"from {format_time(found.start)} to {format_time(found.end)}"
    gpus = f"{plural(len(found.gpus), 'GPU')} ({gpus_words(found)})"
    print(printable(f"reservation {found.reservation_id}{what}: {gpus} for {found.user} {when}"))
