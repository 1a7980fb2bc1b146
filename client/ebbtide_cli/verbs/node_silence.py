"""Verbs below ``ebb node`` for silent nodes and for attempts that are set aside, and words about both."""

import sys
from collections.abc import Iterator

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import DURATION, examples, json_option, master_option, node_argument
from ebbtide_cli.describing.draining import print_node_json
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import plural, printable

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command("confirm-dead", epilog=examples("ebb node confirm-dead ws3", "ebb node confirm-dead ws3 --yes"))
@node_argument
@yes_option
@json_option
@master_option
def confirm_dead(name: str, yes: bool, as_json: bool, master: str | None) -> None:
    """Declare a silent node dead: it is switched off, or cut off from storage and network for good.

    Its jobs resume on other nodes from their last checkpoints, at once. If the node does run on, two copies of these
    jobs run, because nothing else keeps them apart. When the node comes back, its copies are ended.
    """
    _ask_first(f"Node {name}: is it certain that nothing runs there any more?", yes, "confirm-dead")
    with connected(master) as stub:
        reply = ask(stub.ConfirmDead, client_pb2.NodeRequest(node=name, user=user_name()))
    if as_json:
        print_node_json(reply)
    else:
        print(f"Node {reply.node.name} is {printable(reply.node.reason)}: its jobs go on elsewhere.")


@click.command("end-stray", epilog=examples("ebb node end-stray ws3 17.2", "ebb node end-stray ws3 17.2 --grace 0s"))
@node_argument
@click.argument("attempt", metavar="JOB.ATTEMPT")
@click.option(
    "--grace",
    metavar="TIME",
    type=DURATION,
    default="3m",
    show_default=True,
    help="Time that the job has to checkpoint.",
)
@json_option
@master_option
def end_stray(name: str, attempt: str, grace: float, as_json: bool, master: str | None) -> None:
    """End an attempt that runs on a node but is missing in the master's journal ('ebb nodes' lists these attempts).

    Such attempts exist after an older journal was restored. Until the attempt has ended, its GPUs stay reserved for it
    and its job does not start.
    """
    job, _, number = attempt.rpartition(".")
    if not (job and number.isdecimal() and len(number) < 10):
        raise Failure(f"node end-stray: {printable(attempt)!r} is not JOB.ATTEMPT, such as 17.2", USAGE)
    request = client_pb2.EndStrayRequest(node=name, job_id=job, attempt=int(number), grace_s=grace, user=user_name())
    with connected(master) as stub:
        reply = ask(stub.EndStray, request)
    if as_json:
        print_node_json(reply)
    else:
        print(f"{attempt} is asked to end on node {name}.")


@click.command("believe-silence", epilog=examples("ebb node believe-silence"))
@json_option
@master_option
def believe_silence(as_json: bool, master: str | None) -> None:
    """Declare that nodes which fell silent together are really silent, and that the master is not cut off.

    Until somebody declares this, or half of the nodes are back, the master runs no fence hook for them and counts no
    lease as over.
    """
    with connected(master) as stub:
        reply = ask(stub.BelieveSilence, client_pb2.BelieveSilenceRequest(user=user_name()))
    if as_json:
        print_json({"nodes": list(reply.nodes)})
    else:
        print(f"Silent by themselves: {', '.join(reply.nodes)}.")


def _ask_first(question: str, yes: bool, verb: str) -> None:
    """Ask the user to confirm, unless ``yes``; raise `Failure` if the user does not."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"node {verb}: there is no terminal to ask on: add --yes", USAGE)
    if not click.confirm(question, default=False):
        raise Failure("nothing was done")


def silence_words(reply: client_pb2.ListNodesReply) -> Iterator[str]:
    """Yield lines on what keeps the cluster as a whole from scheduling as usual."""
    if reply.doubted:
        silent = f"{plural(len(reply.doubted), 'node')} fell silent together ({', '.join(reply.doubted)})"
        yield f"{silent}: the master may be the one that is cut off, and starts none of their jobs elsewhere."
        yield "  'ebb node believe-silence' if it is not"
    if reply.unheard:
        yield f"The journal was restored: nothing starts before these were heard: {', '.join(reply.unheard)}"
        yield "  'ebb node confirm-dead NODE' for those that do not come back"


def stray_words(node: client_pb2.Node, stray: client_pb2.Stray) -> str:
    """Describe an attempt that is set aside, and what can be done about it."""
    name = f"{stray.job_id}.{stray.attempt}"
    why = "counts as over" if stray.kind == "over" else "is not in the master's journal"
    what = f", and no more is known of it than its processes{'' if stray.gpus else ' (its GPUs are not known)'}"
    fate = "it is being ended" if stray.ending else f"'ebb node end-stray {node.name} {name}' ends it"
    return printable(f"  set aside: {name} {why}{what if stray.orphan else ''}; {fate}")
