"""``ebb explain``: why a job waits, and when it may start."""

import time
from typing import Any

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.connection import ask, connected
from ebbtide_cli.output import print_json
from ebbtide_cli.values import format_duration
from ebbtide_cli.verb import examples, id_argument, json_option, master_option


@click.command(epilog=examples("ebb explain 17", "ebb explain --json 17"))
@id_argument
@json_option
@master_option
def command(job_id: str, as_json: bool, master: str | None) -> None:
    """Say why a job waits: what it needs, who stands before it, what each node has, and when there is room.

    There is room once enough running jobs have ended as their progress, earlier runs or time limits tell.
    """
    with connected(master) as stub:
        explanation = ask(stub.Explain, client_pb2.JobRequest(job_id=job_id))
    if as_json:
        print_json(_facts(explanation))
    else:
        _print(explanation)


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
    }


def _print(explanation: client_pb2.Explanation) -> None:
    from ebbtide_cli.drawing import print_table

    print(f"Job {explanation.job_id} is {explanation.state}: {explanation.reason}")
    print(f"It needs {explanation.needs}.")
    if explanation.HasField("remaining_s"):
        left = format_duration(explanation.remaining_s)
        print(f"It has {left} of work on one GPU left ({explanation.remaining_from}).")
    if not explanation.HasField("ahead"):
        return
    print(f"Before it in the queue: {explanation.ahead}.")
    when = ""
    if explanation.HasField("room_at"):
        wait = explanation.room_at - time.time()
        when = f"in about {format_duration(wait)}, " if wait > 1 else ""
    print(f"Room for it: {when}{explanation.basis}.")
    if explanation.nodes:
        print_table(
            ("NODE", "IDLE GPUS", "IN THE WAY"),
            [(view.node, f"{view.idle_gpus} of {view.gpus}", view.obstacle or "nothing") for view in explanation.nodes],
        )
