"""``ebb dashboard``: show the cluster in a browser."""

import asyncio
import grp
import logging
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from ebbtide_machine.process import Identity

from ebbtide_cli import interrupts
from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.errors import UNREACHABLE, USAGE, Failure
from ebbtide_cli.home import Home, read_record, write_record
from ebbtide_cli.terminal.browser import has_display, open_page
from ebbtide_cli.terminal.output import complain, print_json

if TYPE_CHECKING:
    import grpc
    from ebbtide_web.dashboard import DashboardSettings
    from ebbtide_web.serve import Listening, Proxied, Shared

    from ebbtide_cli.masters.address import Address

MOST_BASE: Final = 200
"""Characters of the path below which all pages are."""
_BASE: Final = re.compile(rf"(?=.{{1,{MOST_BASE}}}\Z)(/[A-Za-z0-9._~-]+)+")


@click.command(
    epilog=examples(
        "ebb dashboard",
        "ebb dashboard --no-open",
        "ebb dashboard --link --json",
        "ebb dashboard --shared login.lab.example --cert lab.pem --key lab.key",
        "ebb dashboard --shared login.lab.example --socket /run/ebb/web.sock --group www-data --base-path /ebb",
    )
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port (default: 8642, or any other if that is taken); with --socket that of the proxy (default: 443).",
)
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
@click.option("--link", "only_link", is_flag=True, help="Print a new link to the dashboard that runs already.")
@click.option("--no-link", is_flag=True, help="Print no link; 'ebb dashboard --link' makes one.")
@click.option(
    "--shared",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="Serve other machines too, with TLS, under this name; needs --cert and --key, or --socket.",
)
@click.option(
    "--cert",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Certificate for --shared, and those up to its root.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Private key of the certificate, which only you may read.",
)
@click.option(
    "--socket",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="UNIX socket to serve at, for a proxy on this machine that speaks TLS under the name of --shared.",
)
@click.option("--group", metavar="NAME", help="Group that may connect to --socket, too (default: only this account).")
@click.option("--base-path", "base", metavar="PATH", default="", help="Path below which all pages are, such as /ebb.")
@json_option
@master_option
def command(
    port: int | None,
    no_open: bool,
    only_link: bool,
    no_link: bool,
    hosts: tuple[str, ...],
    cert: Path | None,
    key: Path | None,
    socket: Path | None,
    group: str | None,
    base: str,
    as_json: bool,
    master: str | None,
) -> None:
    """Show cluster, queue and jobs in a browser, until Ctrl-C; print a link that logs in once, within a minute.

    If a dashboard of EBB_HOME runs already, print a link to it. 'ebb up --dashboard' keeps one running.
    """
    check_libraries("dashboard")
    home = Home.current()
    base = _base(base)
    shared = _proxied(hosts, socket, group, cert, key) or _shared(hosts, cert, key)
    running = _running(home)
    if running is not None and port is None and shared is None and not base:
        _refuse_another(home, master)
        _show_link(home, running, no_open=no_open or only_link, as_json=as_json)
        return
    if only_link:
        words = f"no dashboard runs in EBB_HOME {home.root}: start one with 'ebb dashboard' or 'ebb up --dashboard'"
        raise Failure(f"dashboard: --link: {words}", UNREACHABLE)
    address = _answering(master)
    if no_link:
        _log_changes()
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    listening = _listen(port, shared, base)
    settings = _settings(home, address, master, listening)
    _serve(home, listening, settings, address, quiet=no_link, no_open=no_open, as_json=as_json)


def check_libraries(verb: str) -> None:
    """Raise `Failure` unless the libraries of a dashboard are there."""
    missing = [name for name in ("jinja2", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise Failure(f"{verb}: the dashboard needs {', '.join(missing)}: pip install 'ebbtide[dashboard]'")


def show_running(home: Home) -> None:
    """Print and open a link to the dashboard that runs in ``home``, if one does."""
    if (url := _running(home)) is not None:
        _show_link(home, url, no_open=False, as_json=False)


def _running(home: Home) -> str | None:
    """Return the address of the dashboard that runs in ``home``; None if none does."""
    record = (read_record(home.dashboard_record) if home.dashboard() else None) or {}
    return str(record["url"]) if "url" in record else None


def _refuse_another(home: Home, master: str | None) -> None:
    """Raise `Failure` if ``master`` or EBB_MASTER names another master than that of the dashboard that runs.

    Older dashboards did not record theirs.
    """
    from ebbtide_cli.masters.finding import named_masters

    shown = str((read_record(home.dashboard_record) or {}).get("master", ""))
    named = named_masters(master)
    if shown and named and not {_known_as(address) for address in named} & set(shown.split(",")):
        words = f"the dashboard that runs in EBB_HOME {home.root} shows the master at {shown}"
        raise Failure(f"dashboard: {named[0].source}: {words}: end that one, or start another one with --port", USAGE)


def _known_as(address: "Address") -> str:
    """Return the address in one way, whether the socket or the port of the master in EBB_HOME was named."""
    from ebbtide_cli.masters.address import at_home
    from ebbtide_cli.masters.trust import is_own

    own = Home.current().root if address.home is None and is_own(address) else address.home
    return str(address if own is None else at_home(own.resolve(), address.source))


def _show_link(home: Home, url: str, *, no_open: bool, as_json: bool) -> None:
    from ebbtide_web.access.sessions import Links

    links = Links(home.dashboard_links)
    link = f"{url}/login#code={links.make()}"
    if as_json:
        print_json({"url": link})
    else:
        print(f"{link}\nThe link logs in once, within a minute; 'ebb dashboard --link' makes another.", flush=True)
    if not no_open and has_display():
        open_page(links.page(link).as_uri())


def _base(text: str) -> str:
    """Return the path below which all pages are, without a slash at its end. Raises `Failure`."""
    base = text.rstrip("/")
    if base and (not _BASE.fullmatch(base) or any(part in (".", "..") for part in base.split("/"))):
        words = f"{text[:80]!r} is not a path such as /ebb, of letters, digits and ._~-, {MOST_BASE} at most"
        raise Failure(f"dashboard: --base-path: {words}", USAGE)
    return base


def _check_hosts(hosts: tuple[str, ...]) -> None:
    if wrong := [host for host in hosts if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host)]:
        raise Failure(f"dashboard: --shared: {wrong[0][:80]!r} is not the name of a host", USAGE)


def _proxied(
    hosts: tuple[str, ...], socket: Path | None, group: str | None, cert: Path | None, key: Path | None
) -> "Proxied | None":
    """Return how a proxy reaches the dashboard; None if none does. Raises `Failure`."""
    from ebbtide_web.serve import Proxied

    if socket is None:
        if group is not None:
            raise Failure("dashboard: --group: it is for --socket, and there is none", USAGE)
        return None
    if not hosts:
        raise Failure("dashboard: --socket needs --shared: the name under which the proxy speaks TLS", USAGE)
    if cert is not None or key is not None:
        raise Failure(
            "dashboard: --socket: it is the proxy that has the certificate: leave out --cert and --key", USAGE
        )
    _check_hosts(hosts)
    try:
        return Proxied(hosts, socket, None if group is None else grp.getgrnam(group).gr_gid)
    except KeyError:
        raise Failure(f"dashboard: --group: there is no group {group!r} on this machine", USAGE) from None


def _shared(hosts: tuple[str, ...], cert: Path | None, key: Path | None) -> "Shared | None":
    """Return how other machines reach the dashboard; None if none do. Raises `Failure`."""
    from ebbtide_web.serve import Shared

    if not hosts and cert is None and key is None:
        return None
    if not hosts or cert is None or key is None:
        words = "--shared, --cert and --key need each other, or --shared needs --socket: other machines are served with"
        raise Failure(f"dashboard: {words} TLS only", USAGE)
    _check_hosts(hosts)
    try:
        if key.stat().st_mode & 0o077:
            raise Failure(f"dashboard: --key {key}: others can read it: chmod 600", USAGE)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise Failure(f"dashboard: --cert, --key: they do not belong together, or are none: {error}", USAGE) from None
    except OSError as error:
        raise Failure(f"dashboard: --cert, --key: {error.filename or key}: {error.strerror}", USAGE) from None
    return Shared(hosts, cert, key)


def _listen(port: int | None, shared: "Shared | Proxied | None", base: str) -> "Listening":
    """Open the port or the socket. Raises `Failure`."""
    from ebbtide_machine.place import NotTrusted
    from ebbtide_web.access.unix_socket import NoSocketError
    from ebbtide_web.serve import Proxied, listen

    option = f"--socket {shared.socket}" if isinstance(shared, Proxied) else f"--port {port}"
    try:
        return listen(port, shared, base)
    except (NoSocketError, NotTrusted) as error:
        raise Failure(f"dashboard: {option}: {error}", USAGE) from None
    except OSError as error:
        raise Failure(f"dashboard: {option}: {error.strerror or error}", USAGE) from None


def _serve(
    home: Home,
    listening: "Listening",
    settings: "DashboardSettings",
    address: "Address",
    *,
    quiet: bool,
    no_open: bool,
    as_json: bool,
) -> None:
    from ebbtide_web.serve import serve

    from ebbtide_cli.masters.address import parse_address

    beside = [parse_address(text, address.source) for text in address.beside] or [address]
    facts = {"url": listening.url, "master": ",".join(map(_known_as, beside))}

    def ready() -> None:
        if (other := _running(home)) is None:
            write_record(home.dashboard_record, {**Identity.own().to_json(), **facts})
        else:
            words = "it is the one that 'ebb down' ends, and that 'ebb dashboard --link' leads to"
            complain(f"dashboard: another one runs in EBB_HOME {home.root} already, at {other}: {words}")
        if not quiet:
            _show_link(home, listening.url, no_open=no_open, as_json=as_json)

    async def until_stopped(stop: int) -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_reader(stop, stopped.set)
        await serve(settings, listening, ready, stopped)

    try:
        with interrupts.stop_signals() as stop:
            interrupts.run(until_stopped(stop))
    finally:
        if (read_record(home.dashboard_record) or {}).get("pid") == os.getpid():
            home.dashboard_record.unlink(missing_ok=True)


def _log_changes() -> None:
    """Log who logs in and who changes what, as what runs in the background does."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    own = logging.getLogger("ebbtide_web")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False


def _answering(master: str | None) -> "Address":
    """Return where the master is. It must answer now, so that a mistake is told here and not on a page."""
    from ebbtide_protos.v1 import user_pb2

    from ebbtide_cli.masters.connection import ask, connected
    from ebbtide_cli.masters.finding import find_master

    address = find_master(master)
    with connected(address) as stub:
        ask(stub.WhoAmI, user_pb2.WhoAmIRequest())
    return address


def _settings(home: Home, address: "Address", master: str | None, listening: "Listening") -> "DashboardSettings":
    """Return the settings of a dashboard of the master at ``address``, which was found as ``master``."""
    from ebbtide_web.access.sessions import Links
    from ebbtide_web.dashboard import DashboardSettings
    from ebbtide_web.reach import AwayError

    from ebbtide_cli.masters.connection import opened
    from ebbtide_cli.masters.credentials import token_for
    from ebbtide_cli.masters.finding import find_master

    @asynccontextmanager
    async def opener() -> "AsyncIterator[grpc.aio.Channel]":
        async with AsyncExitStack() as stack:
            try:
                # Of masters that stand by for each other, the one that serves now; no other master than was found.
                found = await asyncio.to_thread(find_master, master) if address.beside else address
                channel = await stack.enter_async_context(opened(found))
            except Failure as failure:
                raise AwayError(failure.message) from None
            yield channel

    return DashboardSettings(
        opener=opener,
        token=lambda: token_for(address) or "",
        links=Links(home.dashboard_links),
        origin=listening.origin,
        replay=(sys.executable, "-P", "-m", "ebbtide_cli.main", "replay"),
        base=listening.base,
        cluster=str(address),
    )
