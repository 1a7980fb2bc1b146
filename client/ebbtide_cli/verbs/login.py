"""``ebb login``: store what proves this user to a master."""

import os
import sys
from getpass import getpass
from typing import Final

import click
from ebbtide_protos.invitation import PREFIX, Invitation, decode
from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.commands.verb import examples, json_option
from ebbtide_cli.describing.identity import expiry_words, user_facts
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.address import parse_address
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.masters.credentials import TOKEN_VARIABLE
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.masters.logins import Login, trying
from ebbtide_cli.masters.trust import authority
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.terminal.text import printable

MAX_LINE: Final = 32_768
TOKEN_PREFIX: Final = "ebb_"


@click.command(
    epilog=examples(
        "cat invitation.txt | ebb login",
        "ebb login  # and paste the line",
        "ebb token create | ebb login unix:/home/ada/lab",
    )
)
@click.argument("where", metavar="[HOST:PORT|unix:HOME]", required=False)
@json_option
def command(where: str | None, as_json: bool) -> None:
    """Log in with an invitation or a token from an admin; it is read from the terminal or standard input.

    An invitation also says where the master is; a token alone is for a master of this account. From then on 'ebb' uses
    that master, unless --master, EBB_MASTER or a cluster of this machine's own takes precedence.
    """
    invitation = _invited(_line(), where)
    address = parse_address(invitation.address, "HOST:PORT")
    if os.environ.pop(TOKEN_VARIABLE, None):
        complain(f"warning: {TOKEN_VARIABLE} is set, and goes before any login")
    with trying(str(address), Login(invitation.secret, invitation.ca)), connected(address) as stub:
        found = ask(stub.WhoAmI, user_pb2.WhoAmIRequest())
    if as_json:
        print_json({"master": str(address), **user_facts(found.user)})
        return
    print(printable(f"Logged in at {address} as {found.user.name} ({found.user.role})."))
    print(f"The token expires: {expiry_words(found.token, found.now)}.")


def _line() -> str:
    """Read the secret; it is never an argument, because every process of the machine could read that."""
    if sys.stdin.isatty():
        return getpass("Invitation or token: ").strip()
    return sys.stdin.readline(MAX_LINE).strip()


def _invited(line: str, where: str | None) -> Invitation:
    """Return where to log in, and with what."""
    if line.startswith(PREFIX):
        try:
            invitation = decode(line)
        except ValueError as error:
            raise Failure(f"login: {error}", USAGE) from None
        return Invitation(where or invitation.address, invitation.secret, invitation.ca)
    if not line.startswith(TOKEN_PREFIX):
        raise Failure(f"login: this is neither an invitation ({PREFIX}…) nor a token ({TOKEN_PREFIX}…)", USAGE)
    address = parse_address(where, "HOST:PORT") if where else find_master(None)
    trusted = authority(address)
    if address.home is None and not trusted:
        raise Failure(f"login: a token alone does not say who the master at {address} is: ask for an invitation", USAGE)
    return Invitation(str(address), line, trusted)
