"""Work out how many nodes, tasks, CPUs and GPUs ``#SBATCH`` lines ask for: sbatch has several options for each."""

from dataclasses import dataclass
from fractions import Fraction

from ebbtide_cli.submitting.slurm import values
from ebbtide_cli.submitting.slurm.lines import SbatchOption
from ebbtide_cli.submitting.slurm.reading import SbatchReading
from ebbtide_cli.submitting.slurm.values import GpuRequest


@dataclass(frozen=True, slots=True)
class Shape:
    """What the lines ask for in all; 0 or None where they ask for nothing.

    ``gpus`` counts the GPUs of all ``nodes``, and is a fraction of one for a share. ``tasks`` is 0 if their number
    follows from that of the nodes. ``cpus`` and ``mem_bytes`` are per node. ``gpus_by`` is the option that asks for the
    GPUs.
    """

    nodes: int
    most_nodes: int
    tasks: int
    cpus: int
    mem_bytes: int
    gpus: Fraction
    model: str
    gpus_by: SbatchOption | None


def shape_of(lines: SbatchReading) -> Shape:
    """Combine all options; `Failure` names the line of one that cannot be met."""
    least, most = lines.read("nodes", values.nodes) or (0, 0)
    asked, on_each = lines.read("ntasks", values.count) or 0, lines.read("ntasks-per-node", values.count) or 0
    gpus_by, total, each = _gpus(lines)
    if not least:
        least = most = _nodes(asked, on_each, total, each)
    gpus, by_gpus = total.count if total else each.count * least if each else Fraction(0), 0
    if found := lines.read("gpus-per-task", values.gpus):
        by_gpus = int(gpus / found.count) if found.count else 0
        tasks = asked or by_gpus or least * (on_each or 1)
        gpus, gpus_by, each = found.count * tasks, gpus_by or lines.asked["gpus-per-task"], each or found
    by_gpus = by_gpus or int(gpus * (lines.read("ntasks-per-gpu", values.count) or 0))
    per_node = on_each or -(-(asked or by_gpus or least) // least)
    if most > least and not (least == 1 and total):
        lines.note("nodes", f"it runs on {least}")
        most = least
    model = next((kind.model for kind in (total, each) if kind and kind.model), "")
    cpus = _cpus(lines, per_node, gpus / least)
    memory = _memory(lines, cpus or per_node, gpus / least)
    return Shape(least, most, asked or (0 if on_each else by_gpus), cpus, memory, gpus, model, gpus_by)


def _gpus(lines: SbatchReading) -> tuple[SbatchOption | None, GpuRequest | None, GpuRequest | None]:
    """Return which option asks for GPUs, how many it asks for in all, and how many on each node."""
    total = lines.read("gpus", values.gpus)
    each = lines.read("gpus-per-node", values.gpus) or lines.read("gres", values.gres)
    by = next((lines.asked[name] for name in ("gpus", "gpus-per-node", "gres") if name in lines.asked), None)
    return by, total, each


def _nodes(tasks: int, per_node: int, total: GpuRequest | None, each: GpuRequest | None) -> int:
    """Return how many nodes are needed if the lines do not say."""
    if tasks and per_node:
        return -(-tasks // per_node)
    if total and each and each.count >= 1:
        return max(1, int(-(-total.count // each.count)))
    return 1


def _cpus(lines: SbatchReading, tasks_per_node: int, gpus_per_node: Fraction) -> int:
    by_gpu = lines.read("cpus-per-gpu", values.count)
    if by_gpu:
        return int(by_gpu * gpus_per_node)
    by_task = lines.read("cpus-per-task", values.count)
    return (by_task or 1) * tasks_per_node if by_task or tasks_per_node > 1 else 0


def _memory(lines: SbatchReading, cpus: int, gpus_per_node: Fraction) -> int:
    """Return the bytes of host memory on each node; Slurm's 0, which means all memory, asks for nothing here."""
    if found := lines.read("mem", values.memory):
        return found
    if "mem" in lines.asked:
        lines.note("mem", "all memory of a node cannot be asked for: none is")
    if by_cpu := lines.read("mem-per-cpu", values.memory):
        return by_cpu * cpus
    by_gpu = lines.read("mem-per-gpu", values.memory)
    return int(by_gpu * gpus_per_node) if by_gpu else 0
