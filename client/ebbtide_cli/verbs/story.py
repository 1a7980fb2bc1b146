"""``ebb story``: every event that one job went through."""

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.connection import ask, connected
from ebbtide_cli.facts import event_facts, state_of
from ebbtide_cli.jobs import finished
from ebbtide_cli.output import print_json
from ebbtide_cli.text import format_time, printable
from ebbtide_cli.values import format_duration
from ebbtide_cli.verb import examples, id_argument, json_option, master_option


@click.command(epilog=examples("ebb story 17", "ebb story --json 17"))
@id_argument
@json_option
@master_option
def command(job_id: str, as_json: bool, master: str | None) -> None:
    """Print every event that one job went through: when, how long after the first, and what."""
    with connected(master) as stub:
        events = ask(stub.ShowStory, client_pb2.JobRequest(job_id=job_id)).events
        job = ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id))
    if as_json:
        print_json([event_facts(event) for event in events])
        return
    from ebbtide_cli.drawing import print_columns

    start = events[0].time if events else 0.0
    print_columns((format_time(event.time), f"+{format_duration(event.time - start)}", event.text) for event in events)
    if not finished(job):
        print(printable(f"Now it is {state_of(job)}: {job.reason}"))
