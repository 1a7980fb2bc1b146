"""``ebb events``: print what happened in the cluster."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.time_options import since_option, tail_option
from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.describing.facts import event_facts
from ebbtide_cli.masters.connection import follow as follow_stream
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_time, printable

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub


@click.command(epilog=examples("ebb events", "ebb events --since 10m", "ebb events --tail 20 --follow --json"))
@click.option("-f", "--follow", is_flag=True, help="Print new events as they happen.")
@tail_option
@since_option
@json_option
@master_option
def command(follow: bool, tail: int | None, since: float | None, as_json: bool, master: str | None) -> None:
    """Print every recorded event, oldest first; with --json one object per line."""
    for event in _events(master, client_pb2.WatchEventsRequest(follow=follow, tail=tail or 0, since=since or 0.0)):
        if as_json:
            print_json(event_facts(event))
        else:
            print(_event_line(event), flush=follow)


def _event_line(event: client_pb2.Event) -> str:
    """Format an event: its time, its subject, and what happened."""
    about = f"job {event.job_id}" if event.job_id else f"node {event.node}" if event.node else "cluster"
    return printable(f"{format_time(event.time)}  {about:<12}  {event.text}")


def _events(master: str | None, request: client_pb2.WatchEventsRequest) -> Iterator[client_pb2.Event]:
    def read(stub: "ClientServiceStub") -> Iterator[client_pb2.Event]:
        return stub.WatchEvents(request)

    for event in follow_stream(master, read):
        # If the stream has to be opened again, it continues after this event, with all that follow.
        request = client_pb2.WatchEventsRequest(after_sequence=event.sequence, follow=request.follow)
        yield event
