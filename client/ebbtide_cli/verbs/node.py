"""``ebb node``: let nodes join, take them out of service, and put them back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import DURATION, Verbs, examples, json_option, master_option, node_argument
from ebbtide_cli.describing.draining import drain_words, print_node_json, prospect_words
from ebbtide_cli.errors import INTERRUPTED, USAGE, Failure, Unreachable
from ebbtide_cli.masters.connection import ask, connected, follow
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import StatusLine
from ebbtide_cli.verbs.node_leave import command as leave
from ebbtide_cli.verbs.node_membership import invite, remove, revoke
from ebbtide_cli.verbs.node_silence import believe_silence, confirm_dead, end_stray

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub


@click.group(
    cls=Verbs,
    epilog=examples(
        "ebb node drain ws3 --reason 'new fans'",
        "ebb node drain ws3 --deadline 2h --wait",
        "ebb node drain ws3 --now --force",
        "ebb node resume ws3",
        "ebb node invite ws4",
        "ebb node remove ws3",
        "ebb node leave",
        "ebb node confirm-dead ws3 --yes",
    ),
)
def command() -> None:
    """Let machines join, drain nodes and put them back into service, and declare silent ones dead.

    'ebb nodes' lists the nodes.
    """


command.add_command(invite)
command.add_command(revoke)
command.add_command(remove)


@command.command(epilog=examples("ebb node drain ws3", "ebb node drain ws3 --deadline 2h --reason 'new driver' --wait"))
@node_argument
@click.option(
    "--deadline", metavar="TIME", type=DURATION, help="Time by which jobs have to leave the node, e.g. 2h from now."
)
@click.option("--now", is_flag=True, help="Make jobs leave at once, with their grace periods.")
@click.option("--force", is_flag=True, help="End jobs that cannot continue on another node by then.")
@click.option("--reason", metavar="TEXT", default="", help="Reason that 'ebb nodes' and 'ebb explain' show.")
@click.option("--wait", is_flag=True, help="Wait until no job runs on the node.")
@json_option
@master_option
def drain(
    name: str,
    deadline: float | None,
    now: bool,
    force: bool,
    reason: str,
    wait: bool,
    as_json: bool,
    master: str | None,
) -> None:
    """Start no new jobs on a node until 'ebb node resume', also after restarts.

    Running jobs continue to their end. With a deadline, each job is suspended its grace period before that, and resumes
    on another node. Jobs that cannot are listed, and stay, unless --force ends them.
    """
    if now and deadline is not None:
        raise Failure("node drain: --now: not together with --deadline", USAGE)
    request = client_pb2.DrainNodeRequest(
        node=name, user=user_name(), reason=reason, deadline_s=0.0 if now else deadline, force=force
    )
    with connected(master) as stub:
        reply = ask(stub.DrainNode, request)
    if not as_json:
        _print_drained(reply)
    if wait:
        reply = _wait(master, name, drawn=not as_json)
    if as_json:
        print_node_json(reply)
    elif wait:
        print(f"Nothing runs on node {name} any more.")


@command.command(epilog=examples("ebb node resume ws3"))
@node_argument
@json_option
@master_option
def resume(name: str, as_json: bool, master: str | None) -> None:
    """Put a node into service again."""
    with connected(master) as stub:
        reply = ask(stub.ResumeNode, client_pb2.NodeRequest(node=name, user=user_name()))
    if as_json:
        print_node_json(reply)
    else:
        print(f"Node {name} is in service ({reply.node.state}).")


command.add_command(leave)
command.add_command(confirm_dead)
command.add_command(end_stray)
command.add_command(believe_silence)


def _wait(master: str | None, name: str, *, drawn: bool) -> client_pb2.NodeReply:
    """Wait until nothing runs on the node; return the node as it is then."""

    def read(stub: "ClientServiceStub") -> Iterator[client_pb2.NodeReply]:
        yield from stub.WatchNode(client_pb2.NodeRequest(node=name))
        raise Unreachable("the master stopped telling about the node")

    try:
        with StatusLine(wanted=drawn) as line:
            for reply in follow(master, read):
                if not reply.node.HasField("drain"):
                    raise Failure(f"node {name} was put into service again")
                if not reply.jobs:
                    return reply
                line.show(f"{len(reply.jobs)} left:", ", ".join(job.job_id for job in reply.jobs))
    except KeyboardInterrupt:
        raise Failure(f"detached; node {name} stays out of service ('ebb node resume')", INTERRUPTED) from None
    raise AssertionError("it ends by a reply or a failure")


def _print_drained(reply: client_pb2.NodeReply) -> None:
    print(f"Node {reply.node.name} is {drain_words(reply.node)}")
    for job in reply.jobs:
        print(f"  {prospect_words(job)}")
    if not reply.jobs:
        print("  nothing runs there")
