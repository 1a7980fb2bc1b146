"""``ebb top``: show the cluster live."""

import sys
from typing import TYPE_CHECKING

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import DURATION, examples, json_option, master_option
from ebbtide_cli.describing.facts import Facts, job_facts, node_facts
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.interrupts import stop_signals
from ebbtide_cli.terminal.output import print_json

if TYPE_CHECKING:
    from ebbtide_cli.top.feed import Feed, Picture

SHORTEST_S = 0.1


@click.command(epilog=examples("ebb top", "ebb top --every 5s", "ebb top --once", "ebb top --json --once"))
@click.option(
    "--every", metavar="TIME", type=DURATION, default="1s", show_default=True, help="Time between two frames."
)
@click.option("--once", is_flag=True, help="Print one frame, then exit.")
@json_option
@master_option
def command(every: float, once: bool, as_json: bool, master: str | None) -> None:
    """Watch GPUs with the memory of each job and of foreign processes, jobs with their speed, and the queue.

    q or Ctrl-C quits. If the output is not a terminal, frames follow each other; with --json, one object per frame.
    """
    from ebbtide_cli.top.feed import Feed

    if every < SHORTEST_S:
        raise Failure(f"top: --every: {every:g} s is less than {SHORTEST_S:g} s", USAGE)
    feed = Feed(master, every)
    if once:
        _show_once(feed.picture(), as_json)
        return
    feed.start()
    try:
        with stop_signals() as stop:
            if as_json:
                _stream(feed, stop, every)
            else:
                _watch(feed, stop, every)
    finally:
        feed.stop()


def _show_once(picture: "Picture", as_json: bool) -> None:
    if as_json:
        print_json(_facts(picture))
        return
    from ebbtide_cli.top.screen import print_frame

    print_frame(picture)


def _watch(feed: "Feed", stop: int, every: float) -> None:
    """Draw on the terminal, or print frame after frame if there is none, until told to stop."""
    from rich.console import Console

    from ebbtide_cli.top.screen import Screen, print_frame, wait_for_quit

    if not sys.stdout.isatty():
        print_frame(feed.picture())
        while not wait_for_quit(stop, every):
            print()
            print_frame(feed.picture())
        return
    with Screen(Console(highlight=False)).opened() as screen:
        screen.show(feed.picture())
        while not wait_for_quit(stop, every, keys=sys.stdin.isatty()):
            screen.show(feed.picture())


def _stream(feed: "Feed", stop: int, every: float) -> None:
    from ebbtide_cli.top.screen import wait_for_quit

    print_json(_facts(feed.picture()))
    while not wait_for_quit(stop, every):
        print_json(_facts(feed.picture()))


def _facts(picture: "Picture") -> Facts:
    """Return one frame: its time, whether the master answers, and all facts of `ebb nodes` and `ebb ls`."""
    nodes = [node_facts(node) for node in picture.nodes]
    jobs = [job_facts(job) | _by_now(picture, job) for job in picture.jobs]
    used = {user or "?": seconds for user, seconds in picture.foreign_gpu_s.items()}
    return {
        "time": picture.at,
        "master_away_s": picture.away_s,
        "nodes": nodes,
        "jobs": jobs,
        "foreign_gpu_s": used,
    }


def _by_now(picture: "Picture", job: client_pb2.Job) -> Facts:
    """Return those facts that change with time alone."""
    speed = picture.speeds.get(job.job_id)
    return {"running_s": picture.ran_s(job), "waiting_s": picture.waited_s(job), "steps_per_s": speed}
