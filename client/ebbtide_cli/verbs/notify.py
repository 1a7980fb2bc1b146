"""``ebb notify``: send a test notification."""

import click
from ebbtide_core.model.notice_rules import shown
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import Verbs, examples, json_option, master_option
from ebbtide_cli.errors import FAILED, OK
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import printable


@click.group(cls=Verbs, epilog=examples("ebb notify test team", "ebb notify test mailto:ada@example.org"))
def command() -> None:
    """Send a test notification, as 'ebb submit --notify' would."""


@command.command(epilog=examples("ebb notify test team", "ebb notify test --json mailto:ada@example.org"))
@click.argument("target")
@json_option
@master_option
def test(target: str, as_json: bool, master: str | None) -> int:
    """Send a notification to TARGET at once, and report whether it was accepted.

    TARGET is mailto:ADDRESS, https://HOOK, or a name from the master's configuration. Exit code 1 if it was refused.
    """
    with connected(master) as stub:
        reply = ask(stub.TestNotice, client_pb2.NoticeTest(target=target, user=user_name()))
    if as_json:
        print_json({"target": shown(target), "delivered": reply.delivered, "detail": reply.detail})
    else:
        print(printable(f"{'delivered' if reply.delivered else 'not delivered'}: {reply.detail}"))
    return OK if reply.delivered else FAILED
