"""``ebb agent join``: make this machine a node of a cluster elsewhere."""

import sys

import click

from ebbtide_cli import interrupts
from ebbtide_cli.commands.verb import examples, json_option
from ebbtide_cli.errors import FAILED, USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import print_json


@click.command(
    epilog=examples("ebb node invite ws2 | ebb agent join --name ws2", "ebb agent join ebbi_eyJhZGRyZXNzIjoi --json")
)
@click.argument("invitation", metavar="[INVITATION]", required=False)
@click.option("--name", default="", help="Name of the node (default: the host's name).")
@json_option
def join(invitation: str | None, name: str, as_json: bool) -> None:
    """Join the cluster that issued an invitation, once; from then on 'ebb agent' connects to that cluster.

    Without an argument, the invitation is read from standard input; other users of this machine can see an argument.
    The node's private key is made here, and never leaves EBB_HOME/nodes/NAME/tls.
    """
    from ebbtide_agent.link.joining import JoinError
    from ebbtide_agent.link.joining import join as join_cluster
    from ebbtide_agent.node import node_name
    from ebbtide_protos.invitation import decode

    try:
        node = node_name(name)
        wanted = decode(invitation if invitation is not None else sys.stdin.readline())
    except ValueError as error:
        raise Failure(f"agent join: {error}", USAGE) from None
    node_dir = Home.current().root / "nodes" / node
    node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        endpoint = interrupts.run(join_cluster(wanted, node, node_dir))
    except JoinError as error:
        raise Failure(f"agent join: {error}", FAILED) from None
    if as_json:
        print_json({"node": node, "master": str(endpoint), "folder": str(node_dir / "tls")})
    else:
        option = f" --name {node}" if name else ""
        print(f"node {node} has joined the cluster at {endpoint}: 'ebb agent{option}' attaches to it")
