"""``ebb deploy``: make hosts nodes of the cluster over SSH, upgrade them, and take them back."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ebbtide_cli import interrupts
from ebbtide_cli.commands.verb import OneOf, Verbs, examples, json_option, master_option
from ebbtide_cli.errors import FAILED, INTERRUPTED, OK, USAGE, Failure
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.terminal.output import StatusLine, print_json

if TYPE_CHECKING:
    from ebbtide_cli.deploying.deployment import Deployment, HostReport, Work
    from ebbtide_cli.deploying.remote import Remote

Verb = TypeVar("Verb", bound=Callable[..., Any])

_PLACE: Final = re.compile(r"[A-Za-z0-9/._+-]{1,200}")


@click.group(
    cls=Verbs,
    epilog=examples(
        "ebb deploy ssh ws1 ws2 --bundle ebbtide-0.1.0-py3.11-x86_64.tar.gz",
        "ebb deploy ssh --hostfile hosts.txt --bundle ebbtide-0.1.0-py3.11-x86_64.tar.gz --dry-run",
        "ebb deploy upgrade --hostfile hosts.txt --bundle ebbtide-0.2.0-py3.11-x86_64.tar.gz",
        "ebb deploy remove ws2",
    ),
)
def command() -> None:
    """Make hosts nodes of the cluster over SSH, upgrade them, and take them back.

    It runs where an admin of the cluster is logged in, and calls 'ssh' without a password. A host needs the Python that
    the bundle was made for, and nothing else of Ebbtide.
    """


def _place(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value and (_PLACE.fullmatch(value) is None or ".." in value.split("/")):
        raise click.BadParameter("a directory's name has letters, digits, '/', '.', '_', '+' and '-' here, and no '..'")
    return value.rstrip("/")


def _with_options(*options: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    def added(function: Verb) -> Verb:
        for option in reversed(options):
            function = option(function)
        return function

    return added


_file: Final = click.Path(path_type=Path)
_hosts: Final = _with_options(
    click.argument("hosts", metavar="[HOST]...", nargs=-1),
    click.option(
        "--hostfile", metavar="FILE", type=_file, help="File with a host, and options of its agent, on each line."
    ),
)
_bundle: Final = click.option(
    "--bundle", metavar="FILE", type=_file, required=True, help="What to install: the file that 'make bundle' wrote."
)
_places: Final = _with_options(
    click.option(
        "--folder",
        metavar="DIR",
        default="",
        callback=_place,
        help="Directory to install into, from the account's home (default: /opt for root, else .local/opt).",
    ),
    click.option(
        "--home",
        metavar="DIR",
        default="",
        callback=_place,
        help="EBB_HOME of the agents (default: /var/lib/ebbtide for root, else .local/state/ebbtide).",
    ),
    click.option(
        "--service",
        metavar="auto|systemd|none",
        type=OneOf(("auto", "systemd", "none")),
        default="auto",
        show_default=True,
        help="What keeps the agent: systemd, or nothing (auto: systemd where there is one).",
    ),
)
_common: Final = _with_options(
    click.option("--ssh-config", metavar="FILE", type=_file, help="Configuration file of ssh (default: ssh's own)."),
    click.option("--dry-run", is_flag=True, help="Look at each host and print the steps, and change nothing."),
    json_option,
    master_option,
)


@command.command(
    epilog=examples(
        "ebb deploy ssh ws1 anna@ws2:2222 --bundle ebbtide-0.1.0-py3.11-x86_64.tar.gz",
        "ebb deploy ssh --hostfile hosts.txt --bundle ebbtide-0.1.0-py3.11-x86_64.tar.gz --dry-run",
        "ebb deploy ssh ws3 --agent '--pool a100 --label zone=basement' --bundle ebbtide-0.1.0-py3.11-x86_64.tar.gz",
    )
)
@_hosts
@_bundle
@click.option("--agent", metavar="OPTIONS", default="", help="Options of 'ebb agent' for all hosts, in quotes.")
@_places
@_common
def ssh(hosts: tuple[str, ...], hostfile: Path | None, bundle: Path, agent: str, **rest: Any) -> int:
    """Make hosts nodes of the cluster: install, join, start the agent, wait until it is up, and check the node.

    HOST is [USER@]HOST[:PORT], or a name of ssh's configuration; ssh has to know the host's key, and to log in without
    a password. A step that a host does not need is left out, so a second run changes nothing, and a run that was
    cut off is completed by the next one. A host that fails does not stop the others; the exit code is 1 then.
    """
    return _deploy(hosts, hostfile, agent, bundle, keeps_options=False, removes=False, **rest)


@command.command(epilog=examples("ebb deploy upgrade --hostfile hosts.txt --bundle ebbtide-0.2.0-py3.11-x86_64.tar.gz"))
@_hosts
@_bundle
@_places
@_common
def upgrade(hosts: tuple[str, ...], hostfile: Path | None, bundle: Path, **rest: Any) -> int:
    """Install another bundle on hosts that were deployed, and restart their agents with the options that they have.

    Jobs run on. Upgrade the master first.
    """
    return _deploy(hosts, hostfile, "", bundle, keeps_options=True, removes=False, **rest)


@command.command(epilog=examples("ebb deploy remove ws2", "ebb deploy remove --hostfile hosts.txt --dry-run"))
@_hosts
@_places
@_common
def remove(hosts: tuple[str, ...], hostfile: Path | None, **rest: Any) -> int:
    """Take hosts out of the cluster: end their agents, and remove what was installed there.

    A host with jobs is drained and left as it is. Logs and checkpoints stay in the EBB_HOME of the host.
    """
    return _deploy(hosts, hostfile, "", None, keeps_options=False, removes=True, **rest)


def _deploy(
    given: tuple[str, ...],
    hostfile: Path | None,
    agent: str,
    bundle: Path | None,
    *,
    keeps_options: bool,
    removes: bool,
    folder: str,
    home: str,
    service: str,
    ssh_config: Path | None,
    dry_run: bool,
    as_json: bool,
    master: str | None,
) -> int:
    from ebbtide_cli.deploying.bundle import Bundle
    from ebbtide_cli.deploying.deployment import Deployment, HostReport
    from ebbtide_cli.deploying.hosts import read_hosts
    from ebbtide_cli.deploying.membership import TargetCluster
    from ebbtide_cli.deploying.printing import show_progress
    from ebbtide_cli.deploying.remote import Places, Remote

    hosts = read_hosts(given, hostfile, agent)
    if ssh_config is not None and not ssh_config.is_file():
        raise Failure(f"deploy: --ssh-config: {ssh_config} is no file", USAGE)
    what = Bundle.read(bundle) if bundle else None
    remotes = [Remote(host, Places(folder, home, service), what, keeps_options, ssh_config) for host in hosts]
    reports = [HostReport(host) for host in hosts]
    cluster = TargetCluster.of(find_master(master))
    with StatusLine(wanted=not as_json) as line:
        deployment = Deployment(cluster, lambda: show_progress(line, reports), dry_run)
        interrupted = _work(remotes, reports, deployment.take_back if removes else deployment.bring_up, deployment)
    return _tell(reports, as_json=as_json, interrupted=interrupted)


def _work(remotes: "list[Remote]", reports: "list[HostReport]", work: "Work", deployment: "Deployment") -> bool:
    """Work on all hosts; return whether that was interrupted."""
    from ebbtide_cli.deploying.deployment import on_all

    try:
        with interrupts.sigterm_too():
            interrupts.run(on_all(remotes, reports, work, deployment.on_change))
    except KeyboardInterrupt:
        return True
    return False


def _tell(reports: "list[HostReport]", *, as_json: bool, interrupted: bool) -> int:
    from ebbtide_cli.deploying.deployment import Result
    from ebbtide_cli.deploying.printing import print_reports, report_facts

    if as_json:
        print_json([report_facts(report) for report in reports])
    else:
        print_reports(reports)
    if interrupted:
        raise Failure("deploy: interrupted: the same command goes on where this one ended", INTERRUPTED)
    bad = (Result.FAILED, Result.PROBLEM)
    return FAILED if any(report.result in bad for report in reports) else OK
