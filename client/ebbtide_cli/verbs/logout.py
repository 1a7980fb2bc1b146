"""``ebb logout``: forget a login."""

import click
from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.commands.verb import examples
from ebbtide_cli.errors import Failure
from ebbtide_cli.masters.address import parse_address
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.masters.logins import forget, last_login, login_at


@click.command(epilog=examples("ebb logout", "ebb logout login.lab.example:7077 --revoke"))
@click.argument("where", metavar="[HOST:PORT]", required=False)
@click.option(
    "--revoke", is_flag=True, help="Revoke the token at the master, so that copies of it are worth nothing either."
)
def command(where: str | None, revoke: bool) -> None:
    """Forget the login at a master (default: the last one)."""
    address = str(parse_address(where, "HOST:PORT")) if where else last_login()
    login = login_at(address) if address else None
    if address is None or login is None:
        raise Failure(f"not logged in{f' at {address}' if address else ''}")
    if revoke:
        with connected(parse_address(address, "login")) as stub:
            ask(stub.RevokeToken, user_pb2.RevokeTokenRequest(id=login.token_id))
    forget(address)
    print(f"Logged out of {address}{', and the token is revoked' if revoke else ''}.")
