"""``ebb whoami``: print the user that the master knows this caller as."""

import click
from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.describing.identity import expiry_warning, expiry_words, token_facts, user_facts
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.terminal.text import printable


@click.command(epilog=examples("ebb whoami", "ebb whoami --json"))
@json_option
@master_option
def command(as_json: bool, master: str | None) -> None:
    """Show which user the master takes you for, what you may do, and when your token expires."""
    address = find_master(master)
    with connected(address) as stub:
        found = ask(stub.WhoAmI, user_pb2.WhoAmIRequest())
    token = token_facts(found.token) if found.HasField("token") else None
    if as_json:
        print_json({"master": str(address), **user_facts(found.user), "token": token})
    else:
        account = f", account {found.user.account}" if found.user.account else ""
        print(printable(f"{found.user.name} ({found.user.role}{account}) at {address} ({address.source})"))
        if found.HasField("token"):
            label = f" ({found.token.label})" if found.token.label else ""
            print(printable(f"token {found.token.id}{label}, expires: {expiry_words(found.token, found.now)}"))
    if warning := expiry_warning(found.token, found.now):
        complain(f"warning: {warning}")
