"""``ebb doctor``: check this node."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.cluster import LocalSettings
from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.errors import FAILED, OK, USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.masters.connection import connected
from ebbtide_cli.terminal.output import StatusLine, print_json
from ebbtide_cli.terminal.text import plural

if TYPE_CHECKING:
    from ebbtide_agent.doctor.finding import Finding
    from ebbtide_agent.doctor.subject import Subject

MASTER_S = 5.0


@dataclass(frozen=True, slots=True)
class MasterReport:
    """What the master reports; `reachable` is None if no master is known."""

    reachable: bool | None
    text: str
    clock_ahead_s: float | None = None
    clock_doubt_s: float = 0.0
    roots: dict[str, str] = field(default_factory=dict)
    certificate_ends: float | None = None


@click.command(
    epilog=examples(
        "ebb doctor",
        "ebb doctor --json | jq '.[] | select(.level == \"problem\")'",
        "ebb doctor --checkpoint-root /nfs/ebbtide --master login.lab.example:7077",
        "ebb doctor --gpus 2xRTX4090",
    )
)
@click.option(
    "--node",
    metavar="NAME",
    default="",
    help="Node of this machine to check (default: the one of 'ebb up', named like the host).",
)
@click.option(
    "--gpus",
    metavar="PROFILE",
    help=("GPUs to check: auto (the real ones), none, or fake ones such as 4xRTX4090 (default: as for 'ebb up')."),
)
@click.option(
    "--checkpoint-root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory for checkpoints (default: in EBB_HOME).",
)
@click.option("--ports", metavar="N-M", default="", help="Ports on which ranks may meet (default: 20000-31999).")
@master_option
@json_option
def command(
    node: str, gpus: str | None, checkpoint_root: Path | None, ports: str, master: str | None, as_json: bool
) -> int:
    """Check this node (driver, GPUs, MPS, control groups, ports, clock, disks, PyTorch), and say what to do.

    It changes nothing, needs no master, and exits with 1 if there is a problem.
    """
    from ebbtide_agent.doctor import certificates
    from ebbtide_agent.doctor.examine import examine
    from ebbtide_agent.doctor.finding import Level

    with StatusLine(wanted=not as_json) as line:
        line.show("asking the master")
        subject, word = _subject(Home.current(), node, gpus, checkpoint_root, ports, master)
        findings = [*examine(subject, lambda name: line.show(f"checking: {name}")), *_judge_master(word)]
        findings += [
            *certificates.node(subject.home / "nodes" / subject.node, time.time()),
            *certificates.master(word.certificate_ends, time.time()),
        ]
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        _print(findings)
    return FAILED if any(finding.level is Level.PROBLEM for finding in findings) else OK


def _subject(
    home: Home, node: str, gpus: str | None, root: Path | None, ports: str, master: str | None
) -> "tuple[Subject, MasterReport]":
    """Return what to examine, as far as the options and `ebb up` say. `Failure` for options that make no sense."""
    from ebbtide_agent.doctor.subject import Subject
    from ebbtide_agent.gpu import is_fake
    from ebbtide_agent.gpu.profiles import parse_profile
    from ebbtide_agent.network import Network
    from ebbtide_agent.node import node_name

    settings = LocalSettings.remembered(home)
    chosen = gpus or (settings.gpus if settings else "auto")
    try:
        name = node_name(node or (settings.node if settings else ""))
        Network.parse("", ports)
        if is_fake(chosen):
            parse_profile(chosen)
    except ValueError as error:
        raise Failure(f"doctor: {error}", USAGE) from None
    agent, word = home.agent(name), _ask_master(master)
    subject = Subject(
        home=home.root,
        node=name,
        gpus=chosen,
        checkpoint_root=root.absolute() if root else None,
        ports=ports or (settings.ports if settings else ""),
        agent_pid=agent.pid if agent else 0,
        supervisors=tuple(process.pid for process in home.supervisors()),
        clock_ahead_s=word.clock_ahead_s,
        clock_doubt_s=word.clock_doubt_s,
        other_roots={other: id for other, id in word.roots.items() if other != name},
    )
    return subject, word


def _ask_master(master: str | None) -> MasterReport:
    """Ask the master for its clock and for the checkpoint roots of its nodes."""
    try:
        with connected(master) as stub:
            began = time.time()
            cluster = stub.ShowCluster(client_pb2.ShowClusterRequest(), timeout=MASTER_S)
            ended = time.time()
            nodes = stub.ListNodes(client_pb2.ListNodesRequest(), timeout=MASTER_S).nodes
    except Failure as failure:
        if failure.code == USAGE:
            raise
        named = master or os.environ.get("EBB_MASTER") or Home.current().master_record.exists()
        return MasterReport(False if named else None, failure.message)
    roots = {node.name: node.checkpoint_root_id for node in nodes if node.state != "down"}
    middle, doubt = (began + ended) / 2, (ended - began) / 2
    return MasterReport(
        True,
        f"answers in {1000 * (ended - began):.0f} ms, knows {plural(len(nodes), 'node')}",
        middle - cluster.now,
        doubt,
        roots,
        cluster.certificate_ends if cluster.HasField("certificate_ends") else None,
    )


def _judge_master(word: MasterReport) -> "Iterator[Finding]":
    from ebbtide_agent.doctor.finding import note, ok, problem

    if word.reachable:
        yield ok("master", word.text)
    elif word.reachable is None:
        yield note("master", word.text.partition(":")[0], "ebb up, or name one: ebb doctor --master HOST:PORT")
    else:
        yield problem("master", word.text, "start it (ebb up, ebb master), and let its port through the firewall")


def _print(findings: "list[Finding]") -> None:
    """Print a line for each finding with its advice below it, and the number of findings of each kind."""
    from ebbtide_agent.doctor.finding import Level

    from ebbtide_cli.terminal.drawing import print_columns

    rows = list[tuple[str, ...]]()
    for finding in findings:
        rows.append((finding.level.value, finding.check, finding.text))
        if finding.advice:
            rows.append(("", "", f"→ {finding.advice}"))
    print_columns(rows)
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    words = [
        plural(counts[level], level.value) for level in (Level.PROBLEM, Level.WARNING, Level.NOTE) if counts[level]
    ]
    print(f"\n{', '.join(words) or 'Nothing to do'}.")
