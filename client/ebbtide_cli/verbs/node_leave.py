"""``ebb node leave``: clear a node of its jobs before its machine goes down."""

import signal
import time
from typing import Final

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import DURATION, examples, json_option, master_option
from ebbtide_cli.describing.draining import loan_words, print_node_json, prospect_words
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import StatusLine
from ebbtide_cli.terminal.text import plural, printable

WITHIN_S: Final = 600.0
HEARD_S: Final = 3.0
"""Seconds until the master has learned of it by the next heartbeat; attempts that it starts until then are awaited."""
POLL_S: Final = 0.1


@click.command(
    "leave",
    epilog=examples(
        "ebb node leave",
        "ebb node leave --within 5m",
        "ebb node leave --stay",
        "ebb node leave --ends-in 110s",
        "ebb node leave spot7 --ends-in 110s",
        "ebb node leave spot7 --ends-in 110s --json",
        "ebb node leave spot7 --stay",
    ),
)
@click.argument("name", metavar="[NODE]", required=False, default="")
@click.option(
    "--ends-in",
    metavar="TIME",
    type=DURATION,
    help="Let the jobs leave in time: the machine is gone this long from now.",
)
@click.option(
    "--within",
    metavar="TIME",
    type=DURATION,
    help="Wait at most this long for the jobs to leave (default: 10m, or until --ends-in).",
)
@click.option("--stay", is_flag=True, help="Undo it: the machine does not go down, or only when its agent has said.")
@json_option
@master_option
def command(
    name: str, ends_in: float | None, within: float | None, stay: bool, as_json: bool, master: str | None
) -> None:
    """Let all jobs of a machine checkpoint and leave, because it goes down.

    Without NODE, it is this machine, such as before a reboot: run it as the agent's account; it needs no token. Each
    job gets its grace period, and resumes on another node, or here when the agent was started again. The command
    returns when no job is left here. With NODE, it is any node, and the command returns at once.

    With --ends-in, such as after a notice of a cloud, the machine is gone after that time. Each job leaves early
    enough, with a shorter grace period if there is no time for the whole one, and no job starts there that could not
    leave in time. A later --ends-in replaces this one.
    """
    if name:
        if stay == (ends_in is not None) or within is not None:
            raise Failure("node leave: NODE needs either --ends-in or --stay, and no other option", USAGE)
        _end(name, ends_in, as_json, master)
        return
    if as_json or master is not None:
        raise Failure("node leave: --json and --master need NODE", USAGE)
    if stay and ends_in is not None:
        raise Failure("node leave: --ends-in: not together with --stay", USAGE)
    home = Home.current()
    agents = home.agents()
    if not agents:
        raise Failure(f"node leave: no agent runs in EBB_HOME {home.root}")
    for node, agent in agents.items():
        if stay or ends_in is not None:
            home.note_end(node, None if ends_in is None else time.time() + ends_in)
        agent.signal(signal.SIGUSR2 if stay else signal.SIGUSR1)
    if stay:
        print(f"In service again: {', '.join(agents)}.")
        return
    _wait(home, within if within is not None else WITHIN_S if ends_in is None else ends_in)
    print(f"Nothing runs here any more: {', '.join(agents)}.")


def _end(name: str, ends_in_s: float | None, as_json: bool, master: str | None) -> None:
    """Tell the master when a node is gone, and say what becomes of its jobs."""
    request = client_pb2.EndNodeRequest(node=name, ends_in_s=ends_in_s, user=user_name())
    with connected(master) as stub:
        reply = ask(stub.EndNode, request)
    if as_json:
        print_node_json(reply)
        return
    print(
        printable(f"Node {name} is there {loan_words(reply.node.loan) if reply.node.HasField('loan') else 'for good'}")
    )
    for job in reply.jobs:
        print(f"  {prospect_words(job)}")


def _wait(home: Home, within_s: float) -> None:
    """Wait until no attempt is left on this machine."""
    began = time.monotonic()
    with StatusLine(wanted=True) as line:
        while (left := list(home.supervisors())) or time.monotonic() - began < HEARD_S:
            if left and time.monotonic() - began > within_s:
                raise Failure(f"node leave: {plural(len(left), 'attempt')} did not leave within {within_s:g} s")
            line.show(f"waiting for {plural(len(left), 'attempt')} to checkpoint and end")
            time.sleep(POLL_S)
