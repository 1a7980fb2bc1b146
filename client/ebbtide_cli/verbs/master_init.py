"""``ebb master init``: make certificates, and the first admin's invitation."""

import time

import click

from ebbtide_cli.commands.verb import examples, json_option
from ebbtide_cli.errors import FAILED, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import print_json


@click.command(
    epilog=examples("ebb master init", "ebb master init --host login.lab.example --host 192.0.2.7 --port 7077 --json")
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Name or address by which other machines reach this one; may be repeated.",
)
@click.option(
    "--port", type=click.IntRange(1, 65534), help="Port for clients; agents use the next one (default: 7077)."
)
@click.option("--store", metavar="URL", default="", help="PostgreSQL database for the journal, as for 'ebb master'.")
@json_option
def init(hosts: tuple[str, ...], port: int | None, store: str, as_json: bool) -> None:
    """Make what the master needs to serve other machines; run again, it keeps what exists.

    It makes a certificate authority, a certificate for this machine's names and addresses, and an invitation whose
    first user becomes an admin. All of it is in EBB_HOME/tls, readable by this account alone.
    """
    from ebbtide_master.config.table import ConfigError
    from ebbtide_master.initialise import initialise
    from ebbtide_master.store.journal import StoreError, StoreInUseError
    from ebbtide_master.tls.authority import CertificateError

    home = Home.current()
    try:
        done = initialise(home.root, hosts, port, store)
    except StoreInUseError:
        raise Failure("master init: the master runs: stop it first ('ebb down'), and start it afterwards") from None
    except (StoreError, CertificateError, ConfigError, ValueError) as error:
        raise Failure(f"master init: {error}", FAILED) from None
    file = done.folder.invitation_file if done.folder.invitation_file.exists() else None
    if as_json:
        print_json(
            {
                "folder": str(done.folder.path),
                "address": done.address,
                "hosts": list(done.server.hosts),
                "made": list(done.made),
                "authority_ends": done.authority.ends,
                "certificate_ends": done.server.ends,
                "invitation_file": None if file is None else str(file),
                "invitation": done.invitation,
            }
        )
        return
    for what, ends in (("authority", done.authority.ends), ("certificate", done.server.ends)):
        made = "made" if what in done.made else "kept"
        print(f"{what} {made}, ends {time.strftime('%Y-%m-%d', time.gmtime(ends))}")
    print(f"the certificate is for {', '.join(done.server.hosts)}")
    if file is not None:
        print(f"the admin's invitation is in {file}: 'ebb login' takes it on another machine")
    if done.invitation is not None:
        print(done.invitation)
    print(f"next: ebb master --host 0.0.0.0   (clients at {done.address}, agents at the next port)")
