"""Define the options for the number of nodes, GPUs, CPUs and bytes of memory."""

from typing import Any, Final

import click
from ebbtide_core.model.types import parts

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.values import GpuRange
from ebbtide_cli.verb import CPUS, GPUS, NODES, SIZE

NO_GPU: Final = GpuRange.exactly(0)

OPTIONS: Final[tuple[Option, ...]] = (
    click.option("--gpus", metavar="N|N-M|1/n|1/n-M", type=GPUS, help="GPUs in all, or a range (default: 1 per node)."),
    click.option(
        "--nodes",
        metavar="N|1-M",
        type=NODES,
        default="1",
        help="Exactly so many nodes, each with the same number of the GPUs; all of them start, or none (default: 1). "
        "With 1-M, one node if it has room, else GPUs wherever they are free, on M nodes or fewer.",
    ),
    click.option("--cpu-only", is_flag=True, help="No GPU at all."),
    click.option(
        "--gpu-mem",
        "gpu_mem_bytes",
        metavar="SIZE",
        type=SIZE,
        help="Memory of each GPU (default: what earlier runs used of a shared one, else its share).",
    ),
    click.option("--cpus", metavar="N", type=CPUS, default=None, help="CPUs per node; it gets no more."),
    click.option(
        "--mem",
        "mem_bytes",
        metavar="SIZE",
        type=SIZE,
        help="Host memory per node, e.g. 16GiB; who uses more is ended.",
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    least, most = given["nodes"]
    wanted = _wanted(given["gpus"], given["cpu_only"], least)
    return {
        "gpus_min": parts(wanted.low),
        "gpus_max": parts(wanted.high),
        "nodes": least,
        "max_nodes": most,
        "spread": least < most,
    }


def _wanted(gpus: GpuRange | None, cpu_only: bool, nodes: int) -> GpuRange:
    """Return the requested number of GPUs: by default one on each node."""
    if cpu_only and gpus:
        raise Failure("submit: --cpu-only: not together with --gpus", USAGE)
    return NO_GPU if cpu_only else gpus or GpuRange.exactly(nodes)
