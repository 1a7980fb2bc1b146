"""``ebb story``: print every event of one job."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.time_options import since_option, tail_option
from ebbtide_cli.commands.verb import examples, id_argument, json_option, master_option
from ebbtide_cli.describing.facts import event_facts, state_of
from ebbtide_cli.describing.jobs import finished
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_time, printable
from ebbtide_cli.values import format_duration

CHECKPOINT: Final = "CheckpointPublished"


@click.command(epilog=examples("ebb story 17", "ebb story --tail 20 17", "ebb story --all 17", "ebb story --json 17"))
@id_argument
@click.option(
    "--all", "each", is_flag=True, help="Show every checkpoint, also when there are many in a row (--json always does)."
)
@tail_option
@since_option
@json_option
@master_option
def command(job_id: str, each: bool, tail: int | None, since: float | None, as_json: bool, master: str | None) -> None:
    """Print every event of one job with its time, and the time since the first; checkpoints in a row are one line."""
    with connected(master) as stub:
        events = ask(stub.ShowStory, client_pb2.JobRequest(job_id=job_id)).events
        job = ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id))
    start = events[0].time if events else 0.0
    runs = [run for run in _runs(events, each=each or as_json) if run[-1].time >= (since or 0.0)][-(tail or 0) :]
    if as_json:
        print_json([event_facts(event) for run in runs for event in run])
        return
    from ebbtide_cli.terminal.drawing import print_columns

    print_columns((format_time(run[0].time), _after(start, run[0]), _words(start, run)) for run in runs)
    if not finished(job):
        print(printable(f"Now it is {state_of(job)}: {job.reason}"))


def _runs(events: Sequence[client_pb2.Event], *, each: bool) -> Iterator[Sequence[client_pb2.Event]]:
    """Group the events into lines: several checkpoints in a row form one group, any other event its own."""
    for kind, run in groupby(events, lambda event: event.kind):
        if kind == CHECKPOINT and not each:
            yield list(run)
        else:
            yield from ([event] for event in run)


def _after(start: float, event: client_pb2.Event) -> str:
    return f"+{format_duration(event.time - start)}"


def _words(start: float, run: Sequence[client_pb2.Event]) -> str:
    """Describe a group; for several checkpoints, say how many, until when and of which steps."""
    if len(run) == 1:
        return run[0].text
    known = [json.loads(event.json)["checkpoint"] for event in run if event.json]
    steps = [checkpoint["step"] for checkpoint in known if checkpoint.get("step") is not None]
    of_steps = f" of steps {steps[0]} to {steps[-1]}" if steps else ""
    return f"{len(run)} checkpoints{of_steps} published until {_after(start, run[-1])} ('ebb story --all' shows each)"
