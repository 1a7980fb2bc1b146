"""Bring up the parts of this machine's cluster, and take them down without losing work."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Final

from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.daemons import end_started, start_daemon, stop_process, wait_until_ready
from ebbtide_cli.errors import Failure, Unreachable
from ebbtide_cli.home import Home, read_record, write_record
from ebbtide_cli.masters.address import Address, local_master
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import StatusLine, complain
from ebbtide_cli.terminal.text import plural

KILL_S: Final = 30.0
"""How long ``ebb down --now`` waits for the master to report that everything was killed."""
SUPERVISOR_S: Final = 10.0
"""How long a supervisor may take to end once its attempt is over."""


DEFAULT_POLICY: Final = "fitgpp"
"""The policy of a master when no option names another one."""
_LATER: Final = {"interface": "", "ports": "", "mps": "auto", "keep": "", "config": ""}


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The options of a local cluster, remembered so that ``ebb up`` can restart a part of it.

    An empty ``policy`` means the one of the master's configuration file, else the default; an empty ``config`` means
    the configuration file in the home, if there is one.
    """

    node: str
    gpus: str
    policy: str = ""
    policy_options: dict[str, str] = field(default_factory=dict)
    interface: str = ""
    ports: str = ""
    mps: str = "auto"
    keep: str = ""
    config: str = ""
    dashboard: bool = False

    @classmethod
    def remembered(cls, home: Home) -> "LocalSettings | None":
        """Read what the last successful ``ebb up`` used; None if there was none."""
        record = read_record(home.settings_record) or {}
        match record:
            case {"node": str(node), "gpus": str(gpus), "policy": str(policy), "policy_options": dict(options)}:
                # Older versions left these out.
                rest = {key: str(record.get(key, default)) for key, default in _LATER.items()}
                policy = "" if policy == DEFAULT_POLICY and not options else policy
                chosen = {str(key): str(value) for key, value in options.items()}
                return cls(node, gpus, policy, chosen, **rest, dashboard=record.get("dashboard") is True)
            case _:
                return None

    def remember(self, home: Home) -> None:
        """Write the options down for the next ``ebb up``."""
        write_record(home.settings_record, asdict(self))


@contextmanager
def exclusive(home: Home, line: StatusLine) -> Iterator[None]:
    """Let one ``ebb up`` or ``ebb down`` at a time work on a home."""
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (home.root / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            line.show(f"waiting for another 'ebb up' or 'ebb down' in {home.root}")
            fcntl.flock(lock, fcntl.LOCK_EX)
            line.clear()
        yield


@contextmanager
def undone_if_interrupted(home: Home) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM in the block end the daemons that it started, unless they have jobs to run already."""
    with interrupts.sigterm_too():
        try:
            yield
        except KeyboardInterrupt:
            with interrupts.shielded():
                if not any(home.own_supervisors()):
                    end_started()
            raise


def own_master(home: Home) -> Address:
    """Return the address at which the owner of ``home`` reaches its master; `Unreachable` if none runs."""
    return local_master(home)._replace(as_owner=True)


def ensure_master(home: Home, settings: LocalSettings, line: StatusLine) -> bool:
    """Start the master if it does not run, and wait until it answers; return whether it was started."""
    running = home.master()
    if running and read_record(home.master_record) == read_record(home.quiesced_record):
        complain("the last 'ebb down' did not finish: restarting the master so that jobs start again")
        stop_process("the master", running)
        running = None
    daemon = None
    if running is None:
        options = [f"--policy-option={key}={value}" for key, value in settings.policy_options.items()]
        policy = [f"--policy={settings.policy}"] if settings.policy else []
        config = [f"--config={settings.config}"] if settings.config else []
        daemon = start_daemon("master", ["master", *policy, *options, *config], home, home.master_log)
    wait_until_ready("the master", lambda: _answers(home), daemon, home.master_log, line)
    home.quiesced_record.unlink(missing_ok=True)
    return daemon is not None


def ensure_agent(home: Home, settings: LocalSettings, line: StatusLine) -> bool:
    """Start the node's agent if it does not run, and wait until the node is up; return whether it was started."""
    log, daemon = home.agent_log(settings.node), None
    if home.agent(settings.node) is None:
        rest = [f"--interface={settings.interface}", f"--ports={settings.ports}", f"--mps={settings.mps}"]
        # A root user has agreed with 'ebb up' that their jobs may run as root.
        own = ["--min-uid=0"] if os.geteuid() == 0 else []
        own += [f"--keep={settings.keep}"] if settings.keep else []
        arguments = ["agent", f"--name={settings.node}", f"--gpus={settings.gpus}", *rest, *own]
        daemon = start_daemon("agent", arguments, home, log)
    wait_until_ready(f"node {settings.node}", lambda: _node_is_up(home, settings.node), daemon, log, line)
    return daemon is not None


def ensure_dashboard(home: Home, line: StatusLine) -> bool:
    """Start the dashboard if it does not run, and wait until it answers; return whether it was started."""
    daemon = None
    if home.dashboard() is None:
        arguments = ["dashboard", "--no-open", "--no-link"]
        daemon = start_daemon("dashboard", arguments, home, home.dashboard_log)
    wait_until_ready("the dashboard", lambda: home.dashboard() is not None, daemon, home.dashboard_log, line)
    return daemon is not None


def find_node(home: Home, name: str) -> client_pb2.Node | None:
    """Return the node as the master of ``home`` sees it; None if the master has no such node."""
    with connected(own_master(home)) as stub:
        nodes = ask(stub.ListNodes, client_pb2.ListNodesRequest()).nodes
    return next((node for node in nodes if node.name == name), None)


def bring_down(home: Home, *, kill: bool, line: StatusLine) -> list[str]:
    """End all attempts, with their grace periods unless ``kill``, then all other processes; return what ended.

    Nodes that have joined another cluster go on: their jobs are that cluster's.
    """
    stopped = []
    if dashboard := home.dashboard():
        stop_process("the dashboard", dashboard)
        stopped.append("dashboard")
    if not (home.master() or home.own_agents() or any(home.own_supervisors())):
        return stopped
    _end_attempts(home, kill=kill, line=line)
    for node, agent in home.own_agents().items():
        stop_process(f"the agent of node {node}", agent)
        stopped.append(f"node {node}")
    supervisors = list(home.own_supervisors())  # the record says whose they are, and goes with the master
    if master := home.master():
        stop_process("the master", master)
        stopped.append("master")
    home.quiesced_record.unlink(missing_ok=True)
    if left := [str(process.pid) for process in supervisors if process.is_alive()]:
        raise Failure(f"{plural(len(left), 'attempt')} could not be ended: supervisor pid {', '.join(left)}")
    return stopped


def _end_attempts(home: Home, *, kill: bool, line: StatusLine) -> None:
    """Let the master end every attempt; restart a dead master or agent for this, as only they can do it safely."""
    settings = LocalSettings.remembered(home)
    if home.master() is None:
        if not any(home.own_supervisors()):
            return
        if settings is None:
            raise Failure(f"jobs run in {home.root} without a master: start it with 'ebb master', then 'ebb down'")
        complain("the master had died: starting it to end its attempts")
        ensure_master(home, settings, line)
    write_record(home.quiesced_record, read_record(home.master_record) or {})
    try:
        _quiesce(home, settings, kill=kill, line=line)
    except Unreachable as failure:
        if not kill:
            raise
        complain(f"{failure.message}: going on without it")


def _quiesce(home: Home, settings: LocalSettings | None, *, kill: bool, line: StatusLine) -> None:
    request = client_pb2.QuiesceRequest(kill=kill)
    supervisors: list[Identity] = []
    with connected(own_master(home)) as stub:
        for progress in stub.Quiesce(request, timeout=KILL_S if kill else None):
            if progress.attempts_left:
                line.show(f"waiting for {plural(progress.attempts_left, 'attempt')} to checkpoint and end")
                if settings and home.agent(settings.node) is None:
                    complain(f"the agent of node {settings.node} had died: starting it to end its attempts")
                    ensure_agent(home, settings, line)
            supervisors = supervisors or list(home.own_supervisors())
    line.clear()
    for supervisor in supervisors:
        supervisor.ended_within(SUPERVISOR_S)


def _answers(home: Home) -> bool:
    try:
        with connected(own_master(home)) as stub:
            ask(stub.ShowCluster, client_pb2.ShowClusterRequest())
    except Unreachable:
        return False
    return True


def _node_is_up(home: Home, name: str) -> bool:
    # The master still counts a node as up for a moment after its agent has died.
    if home.agent(name) is None:
        return False
    try:
        node = find_node(home, name)
    except Unreachable:
        return False
    return node is not None and node.state != "down"
