"""``ebb nodes``: list the machines of the cluster and their GPUs."""

import time
from collections.abc import Sequence

import click
from ebbtide_protos.v1 import agent_pb2, client_pb2

from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.describing.draining import drain_words, loan_words
from ebbtide_cli.describing.facts import node_facts, share_of, why_unusable
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_count, plural, printable
from ebbtide_cli.values import format_duration, format_size
from ebbtide_cli.verbs.node_silence import silence_words, stray_words

CERTIFICATE_WARNED_S = 14 * 86_400.0
TITLES = ("GPU", "MODEL", "MEMORY", "BUSY", "ALLOCATED", "JOBS", "FOREIGN PROCESSES", "NOTE")


@click.command(epilog=examples("ebb nodes", "ebb nodes --all", "ebb nodes --json"))
@click.option("--all", "show_all", is_flag=True, help="Show nodes that have ended, too.")
@json_option
@master_option
def command(show_all: bool, as_json: bool, master: str | None) -> None:
    """Show every node with its GPUs: memory, utilisation, allocated share, jobs, and foreign processes."""
    with connected(master) as stub:
        reply = ask(stub.ListNodes, client_pb2.ListNodesRequest())
    nodes = [node for node in reply.nodes if show_all or node.state != "ended"]
    if as_json:
        print_json([node_facts(node) for node in nodes])
        return
    if not nodes:
        print("No nodes: start one with 'ebb agent' or 'ebb up'.")
    for line in silence_words(reply):
        print(line)
    if len(reply.pools) > 1:
        _print_pools(reply.pools, nodes)
    else:
        _print_nodes(nodes)
    if left_out := len(reply.nodes) - len(nodes):
        print(f"{plural(left_out, 'node')} that ended: 'ebb nodes --all'")
    used = [f"{user or '?'} {format_duration(seconds)}" for user, seconds in sorted(reply.foreign_gpu_s.items())]
    if used:
        print()
        print(printable(f"GPU time past the cluster: {', '.join(used)}"))


def _print_pools(pools: Sequence[client_pb2.Pool], nodes: Sequence[client_pb2.Node]) -> None:
    for place, pool in enumerate(pools):
        own = [node for node in nodes if node.pool == pool.name]
        gpus = [gpu for node in own if node.state == "up" for gpu in node.gpus]
        idle = sum(1 for gpu in gpus if not gpu.job_ids and not why_unusable(gpu))
        how = (
            f"{pool.policy}, {pool.fitting} fit" if pool.policy else "not configured any more: nothing is started here"
        )
        if place:
            print()
        print(printable(f"Pool {pool.name}: {how}; {idle} of {plural(len(gpus), 'GPU')} idle"))
        _print_nodes(own)


def _print_nodes(nodes: Sequence[client_pb2.Node]) -> None:
    for place, node in enumerate(nodes):
        if place:
            print()
        _print_node(node)


def _print_node(node: client_pb2.Node) -> None:
    from ebbtide_cli.terminal.drawing import print_table, print_words

    cpus = f"{format_count(node.cpus_allocated)} of {format_count(node.cpus)} CPUs"
    memory = f"{format_size(node.mem_allocated_bytes)} of {format_size(node.mem_bytes)} allocated"
    reason = [f"({node.reason})"] if node.reason else []
    reason += [f"(to be in pool {node.moves_to} once nothing runs here)"] if node.moves_to else []
    groups = () if not node.HasField("cgroup") else (f"control groups: {'yes' if node.cgroup else 'no'}",)
    limits = (f"--cpus {node.cpu_limits}", f"--mem {node.mem_limits}") if node.mem_limits else ()
    gpus = f"GPUs: {node.gpu_backend or 'none'}"
    print_words((node.name, node.state, *reason, f"{cpus}, {memory}", gpus, *groups, *limits))
    if marks := _marks(node):
        print_words(marks)
    for stray in node.strays:
        print(stray_words(node, stray))
    if node.gpus:
        print_table(TITLES, [_gpu_row(node, gpu) for gpu in node.gpus])


def _marks(node: client_pb2.Node) -> tuple[str, ...]:
    """Return a node's labels and taints, when it ends, who drained it, and a warning about its certificate."""
    labels = [f"{key}={value}" for key, value in sorted(node.labels.items())]
    taints = [f"tainted {', '.join(node.taints)}"] if node.taints else []
    drained = [drain_words(node)] if node.HasField("drain") else []
    ends = [loan_words(node.loan)] if node.HasField("loan") else []
    return (*labels, *taints, *ends, *drained, *_certificate(node))


def _certificate(node: client_pb2.Node) -> tuple[str, ...]:
    """Return a warning if the certificate ends soon; the agent should have renewed it long before."""
    left_s = node.certificate_ends - time.time()
    if not node.HasField("certificate_ends") or left_s > CERTIFICATE_WARNED_S:
        return ()
    words = f"certificate ends in {format_duration(left_s)}" if left_s > 0 else "certificate has expired"
    return (f"{words}: join again",)


def _held_by(node: client_pb2.Node, gpu: client_pb2.NodeGpu) -> str:
    """Name the attempt that is set aside and holds the GPU; empty if none does."""
    held = (f"held by {stray.job_id}.{stray.attempt}" for stray in node.strays if gpu.info.uuid in stray.gpus)
    return next(held, "")


def _gpu_row(node: client_pb2.Node, gpu: client_pb2.NodeGpu) -> tuple[str, ...]:
    reading = gpu.reading
    used = format_size(reading.mem_used_bytes) if reading.HasField("mem_used_bytes") else "?"
    return (
        str(gpu.info.index),
        gpu.info.model,
        f"{used}/{format_size(gpu.info.mem_bytes)}",
        f"{reading.utilisation:.0%}" if reading.HasField("utilisation") else "?",
        format_count(share_of(gpu.share_allocated)),
        ",".join(gpu.job_ids) or "-",
        "; ".join(_process(process) for process in reading.processes if not process.job_id) or "-",
        why_unusable(gpu) or _held_by(node, gpu) or gpu.reserved,
    )


def _process(process: agent_pb2.GpuProcess) -> str:
    memory = f" {format_size(process.mem_bytes)}" if process.HasField("mem_bytes") else ""
    return f"{process.command or process.pid} of {process.user or '?'}{memory}"
