"""``ebb up``: start a whole cluster on this machine."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import click
from ebbtide_protos.quantities import parse_duration
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.cluster import (
    DEFAULT_POLICY,
    LocalSettings,
    bring_down,
    ensure_agent,
    ensure_dashboard,
    ensure_master,
    exclusive,
    find_node,
    own_master,
    undone_if_interrupted,
)
from ebbtide_cli.commands.verb import SETTING, examples, json_option
from ebbtide_cli.daemons import first_to_end, print_log_end
from ebbtide_cli.describing.facts import node_facts
from ebbtide_cli.errors import OK, USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.interrupts import stop_signals
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import StatusLine, print_json
from ebbtide_cli.terminal.text import printable

FAKE_PROFILE = "2xA100-40GB"
"""The fake GPUs of a machine without real ones."""


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The options given now; None or empty means as before, or the default."""

    gpus: str | None
    node: str | None
    policy: str | None
    policy_options: dict[str, str]
    interface: str | None
    ports: str | None
    mps: str | None
    keep: str | None
    config: str | None
    dashboard: bool | None


@click.command(
    epilog=examples(
        "ebb up",
        "ebb up --gpus 4xRTX4090",
        "ebb up --policy fifo --foreground",
        "ebb up --interface eth1 --ports 20000-20999",
    )
)
@click.option(
    "--gpus",
    metavar="PROFILE",
    help="GPUs to offer: auto (real ones if there are any, else fake ones), or fake ones such as 4xRTX4090 (default: "
    "those of the last 'ebb up', else auto).",
)
@click.option("--node", metavar="NAME", help="Name of this node (default: the host's name).")
@click.option("--policy", metavar="NAME", help="Scheduling policy of the pool 'default' (default: fitgpp).")
@click.option(
    "--policy-option", "policy_options", metavar="K=V", type=SETTING, multiple=True, help="Option of the policy."
)
@click.option(
    "--interface",
    metavar="NAME",
    help="Network that jobs on several nodes use (default: the one that leads to the master).",
)
@click.option("--ports", metavar="N-M", help="Ports on which the ranks of such jobs may meet (default: 20000-31999).")
@click.option(
    "--mps", metavar="auto|off|PROGRAM", help="Whether jobs on shares of a GPU use NVIDIA's MPS (default: auto)."
)
@click.option(
    "--keep", metavar="TIME", help="Remove logs and checkpoints this long after their job finished (default: never)."
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file of the master (default: ebbtide.toml in EBB_HOME, if there is one).",
)
@click.option(
    "--dashboard/--no-dashboard", default=None, help="Keep a dashboard running; 'ebb dashboard' prints a link to it."
)
@click.option("--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C or SIGTERM does what 'ebb down' does.")
@json_option
def command(
    gpus: str | None,
    node: str | None,
    policy: str | None,
    policy_options: tuple[tuple[str, str], ...],
    interface: str | None,
    ports: str | None,
    mps: str | None,
    keep: str | None,
    config: Path | None,
    dashboard: bool | None,
    foreground: bool,
    as_json: bool,
) -> int:
    """Start master and agent on this machine, and a dashboard if asked to, and return when the cluster answers.

    Run again, it restarts the part that has died. Options that are left out are those of the last 'ebb up'.
    """
    home = Home.current()
    file = None if config is None else str(config.absolute())
    wanted = UpRequest(gpus, node, policy, dict(policy_options), interface, ports, mps, keep, file, dashboard)
    with undone_if_interrupted(home):
        settings, started = _start(home, wanted, as_json)
        if not foreground:
            _report(home, settings, started, as_json)
            return OK
        with stop_signals() as stop:
            _report(home, settings, started, as_json)
            dead = _wait_for_death(home, settings, stop)
    if dead:
        raise dead
    with StatusLine(wanted=not as_json) as line, exclusive(home, line):
        bring_down(home, kill=False, line=line)
    return OK


def _start(home: Home, wanted: UpRequest, as_json: bool) -> tuple[LocalSettings, dict[str, bool]]:
    """Start what does not run; return the settings, and for each part whether it was started."""
    with StatusLine(wanted=not as_json) as line, exclusive(home, line):
        before = LocalSettings.remembered(home)
        settings = _settings(before, wanted)
        if elsewhere := home.joined(settings.node):
            raise Failure(f"up: node {settings.node} has joined the cluster at {elsewhere}: 'ebb agent' runs it")
        _refuse_change(home, before, settings)
        started = {"master": ensure_master(home, settings, line), "agent": ensure_agent(home, settings, line)}
        if settings.dashboard:
            started["dashboard"] = ensure_dashboard(home, line)
        settings.remember(home)
    return settings, started


def _settings(before: LocalSettings | None, wanted: UpRequest) -> LocalSettings:
    """Combine the options given now with those used before and with the defaults."""
    # Only `up` needs this much of the agent, whose other modules take long to load.
    from ebbtide_agent.gpu.nvml import has_real_gpus
    from ebbtide_agent.mps import find_binary
    from ebbtide_agent.network import Network
    from ebbtide_agent.node import node_name

    if wanted.dashboard:
        from ebbtide_cli.verbs.dashboard import check_libraries  # few keep a dashboard

        check_libraries("up")
    try:
        chosen = _checked_profile(wanted.gpus) if wanted.gpus and wanted.gpus != "auto" else None
        named = node_name(wanted.node) if wanted.node else None
        Network.parse(wanted.interface or "", wanted.ports or "")
        if wanted.keep:
            parse_duration(wanted.keep)
        if wanted.mps:
            find_binary(wanted.mps, fake=False)
        settings = before or LocalSettings(node_name(""), "")
    except ValueError as error:
        raise Failure(f"up: {error}", USAGE) from None
    if wanted.gpus == "auto" or not settings.gpus:
        settings = replace(settings, gpus="auto" if has_real_gpus() else FAKE_PROFILE)
    return replace(
        settings,
        gpus=chosen or settings.gpus,
        node=named or settings.node,
        policy=wanted.policy or settings.policy,
        policy_options=wanted.policy_options if wanted.policy or wanted.policy_options else settings.policy_options,
        interface=settings.interface if wanted.interface is None else wanted.interface,
        ports=settings.ports if wanted.ports is None else wanted.ports,
        mps=wanted.mps or settings.mps,
        keep=settings.keep if wanted.keep is None else wanted.keep,
        config=settings.config if wanted.config is None else wanted.config,
        dashboard=settings.dashboard if wanted.dashboard is None else wanted.dashboard,
    )


def _checked_profile(gpus: str) -> str:
    """Check a profile of fake GPUs that the agent will accept; ``none`` is one, too. Raises ValueError."""
    from ebbtide_agent.gpu import is_fake
    from ebbtide_agent.gpu.profiles import parse_profile

    if not is_fake(gpus):
        return gpus
    path = os.path.abspath(gpus) if gpus.endswith(".toml") else gpus
    parse_profile(path)
    return path


def _refuse_change(home: Home, before: LocalSettings | None, settings: LocalSettings) -> None:
    """Refuse other settings for a part that runs: they would have no effect, and ignoring them would be worse."""
    if before is None or before == settings:
        return
    policies = [(known.policy or DEFAULT_POLICY, known.policy_options) for known in (before, settings)]
    if home.master() and policies[0] != policies[1]:
        raise Failure(f"up: --policy: the master already runs with {policies[0][0]}: 'ebb down' first")
    if home.master() and before.config != settings.config:
        raise Failure(f"up: --config: the master already runs with {before.config or 'none'}: 'ebb down' first")
    if home.agent(before.node) and (before.node, before.gpus) != (settings.node, settings.gpus):
        raise Failure(f"up: --gpus: node {before.node} already runs with {before.gpus}: 'ebb down' first")
    same_network = (before.interface, before.ports) == (settings.interface, settings.ports)
    if home.agent(before.node) and not same_network:
        raise Failure(f"up: --interface, --ports: node {before.node} already runs with others: 'ebb down' first")
    if home.agent(before.node) and before.keep != settings.keep:
        raise Failure(f"up: --keep: node {before.node} already runs with {before.keep or 'none'}: 'ebb down' first")
    if home.agent(before.node) and before.mps != settings.mps:
        raise Failure(f"up: --mps: node {before.node} already runs with {before.mps}: 'ebb down' first")


def _report(home: Home, settings: LocalSettings, started: dict[str, bool], as_json: bool) -> None:
    address = own_master(home)
    with connected(address) as stub:
        cluster = ask(stub.ShowCluster, client_pb2.ShowClusterRequest())
    node = find_node(home, settings.node) or client_pb2.Node(name=settings.node)
    if as_json:
        print_json(
            {
                "home": str(home.root),
                "master": str(address),
                "cluster_id": cluster.cluster_id,
                "version": cluster.version,
                "policy": cluster.policy,
                "jobs_unfinished": cluster.jobs_unfinished,
                "started": [name for name, fresh in started.items() if fresh],
                "node": node_facts(node),
            }
        )
        return
    found = {name: "started" if fresh else "was running" for name, fresh in started.items()}
    print(f"master {address} {found['master']}: policy {cluster.policy}, {cluster.jobs_unfinished} unfinished jobs")
    print(printable(f"node {node.name} {found['agent']}: {_gpus_words(node)}"), flush=True)
    if settings.dashboard:
        print(f"dashboard {found['dashboard']}: 'ebb dashboard' opens it", flush=True)


def _gpus_words(node: client_pb2.Node) -> str:
    models = [gpu.info.model for gpu in node.gpus]
    counted = [f"{models.count(model)} x {model}" for model in dict.fromkeys(models)]
    return f"{', '.join(counted) or 'no GPUs'}{' (fake)' if node.gpu_backend == 'fake' else ''}"


def _wait_for_death(home: Home, settings: LocalSettings, stop: int) -> Failure | None:
    """Wait until told to stop (returns None) or until a daemon dies (returns the failure)."""
    daemons = {
        "master": (home.master(), home.master_log),
        f"agent of node {settings.node}": (home.agent(settings.node), home.agent_log(settings.node)),
    }
    if settings.dashboard:
        daemons["dashboard"] = (home.dashboard(), home.dashboard_log)
    living = [process for process, _ in daemons.values() if process]
    dead = first_to_end(living, stop) if len(living) == len(daemons) else None
    for name, (process, log) in daemons.items():
        if process is None or process == dead:
            print_log_end(log)
            return Failure(f"the {name} has died: 'ebb up' restarts it")
    return None
