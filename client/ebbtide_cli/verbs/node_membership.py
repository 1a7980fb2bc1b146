"""``ebb node invite``, ``revoke`` and ``remove``: decide which machines may be nodes."""

import sys
import time

import click
from ebbtide_protos.invitation import Invitation, encode
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import DURATION, examples, json_option, master_option
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import printable


@click.command(
    epilog=examples(
        "ebb node invite",
        "ebb node invite ws2 --expires 1d",
        "ebb node invite ws2 --host login.lab.example",
        "ebb node invite ws2 --json",
    )
)
@click.argument("name", metavar="[NODE]", required=False, default="")
@click.option(
    "--expires",
    metavar="TIME",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Time after which the invitation ends.",
)
@click.option(
    "--host",
    metavar="NAME",
    default="",
    help="Name or address of the master by which the machine reaches it (default: the one named by 'ebb master init').",
)
@json_option
@master_option
def invite(name: str, expires: float, host: str, as_json: bool, master: str | None) -> None:
    """Print an invitation that lets one machine join, once ('ebb agent join' reads it there).

    With a name, it is for that node only. If the node has a certificate already, the new one replaces it.
    """
    with connected(master) as stub:
        reply = ask(stub.InviteNode, client_pb2.InviteNodeRequest(node=name, expires_s=expires, host=host))
    invitation = encode(Invitation(reply.address, reply.secret, reply.ca))
    if as_json:
        facts = {"invitation": invitation, "address": reply.address, "node": name or None, "expires": reply.expires}
        print_json(facts)
        return
    print(invitation)
    if sys.stderr.isatty():
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(reply.expires))
        print(f"for {name or 'one node'} until {until}: there, 'ebb agent join' reads it", file=sys.stderr)


@click.command(epilog=examples("ebb node revoke ws2"))
@click.argument("name", metavar="NODE")
@json_option
@master_option
def revoke(name: str, as_json: bool, master: str | None) -> None:
    """Revoke a node's certificate: the master refuses the node from now on, and closes its connection.

    Jobs that run there continue, and the master does not start them elsewhere while it cannot know that they ended.
    """
    with connected(master) as stub:
        ask(stub.RevokeNode, client_pb2.RevokeNodeRequest(node=name))
    if as_json:
        print_json({"node": name, "revoked": True})
    else:
        print(f"The certificate of node {name} is not valid any more ('ebb node invite {name}' lets it in again).")


@click.command(epilog=examples("ebb node remove ws3"))
@click.argument("name", metavar="NODE")
@json_option
@master_option
def remove(name: str, as_json: bool, master: str | None) -> None:
    """Remove a dead node from the list; refused while something may run there or an unfinished job needs it.

    If its agent connects again with a valid certificate, the node is back ('ebb node revoke' keeps it out).
    """
    with connected(master) as stub:
        ask(stub.RemoveNode, client_pb2.NodeRequest(node=name, user=user_name()))
    if as_json:
        print_json({"node": name, "removed": True})
    else:
        print(printable(f"Node {name} is removed: it is one again if its agent comes back."))
