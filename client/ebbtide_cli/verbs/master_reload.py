"""``ebb master reload``: make the master read its configuration again."""

import click
from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json


@click.command(epilog=examples("ebb master reload", "ebb master reload --json"))
@json_option
@master_option
def reload(as_json: bool, master: str | None) -> None:
    """Make the master read its configuration again, as SIGHUP does (for admins).

    A mistake in the file is reported, and changes nothing. Pools, and settings that need a restart, are listed.
    """
    with connected(master) as stub:
        reply = ask(stub.Reload, user_pb2.ReloadRequest())
    if as_json:
        print_json({"changed": list(reply.changed), "needs_restart": list(reply.needs_restart)})
        return
    print(f"changed: {', '.join(reply.changed) or 'nothing'}")
    if reply.needs_restart:
        print(f"from the master's next start on: {', '.join(reply.needs_restart)}")
