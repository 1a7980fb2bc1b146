"""``ebb token``: manage the tokens with which users and their programs prove who they are."""

from typing import Final

import click
from ebbtide_protos.invitation import Invitation, encode
from ebbtide_protos.quantities import parse_duration
from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.commands.verb import Verbs, argument_type, examples, json_option, master_option
from ebbtide_cli.describing.identity import expiry_words, token_facts
from ebbtide_cli.home import Home, read_record
from ebbtide_cli.masters.address import Address, parse_address
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.masters.trust import authority
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.terminal.text import format_time, printable

TITLES: Final = ("ID", "USER", "LABEL", "CREATED", "EXPIRES")
NEVER: Final = "never"
HERE: Final = ""


def _lifetime(text: str) -> float:
    """Read ``30d`` or ``never``; return seconds, which are 0 for a token that never expires."""
    if text == NEVER:
        return 0.0
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"{text!r} is over at once: write {NEVER} for a token that never expires")
    return seconds


EXPIRES: Final = argument_type("time", _lifetime)


@click.group(
    cls=Verbs,
    epilog=examples(
        "ebb token create --label laptop",
        "ebb token create --user anna --invite login.lab.example:7077",
        "ebb token ls",
        "ebb token revoke 0123456789abcdef",
    ),
)
def command() -> None:
    """Create, list and revoke tokens, with which users log in ('ebb login'); only admins handle others' tokens."""


@command.command(
    epilog=examples(
        "ebb token create --label laptop",
        "ebb token create --user anna --expires 30d",
        "ebb token create --user anna --invite login.lab.example:7077",
    )
)
@click.option("--user", metavar="NAME", default="", help="User of the token (default: you).")
@click.option(
    "--expires",
    metavar="TIME|never",
    type=EXPIRES,
    default="90d",
    show_default=True,
    help="Time for which the token is valid.",
)
@click.option("--label", metavar="TEXT", default="", help="Purpose of the token, which 'ebb token ls' shows.")
@click.option(
    "--invite",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value=HERE,
    help=(
        "Print an invitation, which has the token and the address to log in at (default: the master's "
        "address from here)."
    ),
)
@json_option
@master_option
def create(user: str, expires: float, label: str, invite: str | None, as_json: bool, master: str | None) -> None:
    """Create a token and print it, this once. Anybody who has it can act as its user: keep it secret."""
    address = find_master(master)
    where = _from_elsewhere(address) if invite == HERE else parse_address(invite, "--invite") if invite else None
    request = user_pb2.CreateTokenRequest(for_user=user, lifetime_s=expires, label=label)
    with connected(address) as stub:
        made = ask(stub.CreateToken, request)
    text = made.text if where is None else encode(Invitation(str(where), made.text, authority(address)))
    if as_json:
        print_json({**token_facts(made.token), "text": text})
        return
    print(text, flush=True)
    complain(
        printable(
            f"token {made.token.id} of {made.token.user}; it is shown once, and holds until "
            f"{format_time(made.token.expires) if made.token.HasField('expires') else 'it is revoked'}"
        )
    )


def _from_elsewhere(address: Address) -> Address:
    """Return the address at which other accounts and machines reach a master whose socket is here, if it has one."""
    record = (read_record(Home(address.home).master_record) if address.home is not None else None) or {}
    match record:
        case {"host": str(host), "port": int(port)}:
            return Address(host, port, address.source)
        case _:
            return address


@command.command(epilog=examples("ebb token ls", "ebb token ls --all --json"))
@click.option("--user", metavar="NAME", default="", help="User whose tokens are shown (default: you).")
@click.option("--all", "everybody", is_flag=True, help="Show the tokens of all users.")
@json_option
@master_option
def ls(user: str, everybody: bool, as_json: bool, master: str | None) -> None:
    """List tokens by their ids; the secrets are never shown again."""
    with connected(master) as stub:
        reply = ask(stub.ListTokens, user_pb2.ListTokensRequest(for_user=user, all=everybody))
    if as_json:
        print_json([token_facts(token) for token in reply.tokens])
        return
    from ebbtide_cli.terminal.drawing import print_table

    print_table(
        TITLES,
        ((one.id, one.user, one.label, format_time(one.created), expiry_words(one, reply.now)) for one in reply.tokens),
    )


@command.command(epilog=examples("ebb token revoke 0123456789abcdef"))
@click.argument("id", metavar="ID")
@json_option
@master_option
def revoke(id: str, as_json: bool, master: str | None) -> None:
    """Revoke a token from now on, and close the connections that were opened with it."""
    with connected(master) as stub:
        gone = ask(stub.RevokeToken, user_pb2.RevokeTokenRequest(id=id))
    if as_json:
        print_json(token_facts(gone))
    else:
        print(f"token {gone.id} of {gone.user} is revoked")
