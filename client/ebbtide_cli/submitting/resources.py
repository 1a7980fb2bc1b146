"""Define the options for the number of nodes, GPUs, CPUs and bytes of memory."""

from typing import Any, Final

import click
from ebbtide_core.model.choices import parts

from ebbtide_cli.commands.verb import CPUS, GPUS, NODES, SIZE
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.values import GpuRange

NO_GPU: Final = GpuRange.exactly(0)

TITLE: Final = "GPUs, CPUs and memory"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--gpus",
        metavar="N|N-M|1/n|1/n-M",
        type=GPUS,
        help="Number of GPUs in all, or a range of it (default: 1 per node).",
    ),
    click.option(
        "--nodes",
        metavar="N|1-M",
        type=NODES,
        default="1",
        help=(
            "N: run on exactly N nodes with equally many GPUs each, which all start together (default: 1). "
            "1-M: run on one node if it has enough free GPUs, else on up to M nodes."
        ),
    ),
    click.option("--cpu-only", is_flag=True, help="Run without a GPU."),
    click.option(
        "--gpu-mem",
        "gpu_mem_bytes",
        metavar="SIZE",
        type=SIZE,
        help="Memory of each GPU (default on a shared GPU: what earlier runs used, else the share's part).",
    ),
    click.option("--cpus", metavar="N", type=CPUS, default=None, help="CPUs per node, which the job cannot exceed."),
    click.option(
        "--mem",
        "mem_bytes",
        metavar="SIZE",
        type=SIZE,
        help="Host memory per node, e.g. 16GiB; a job that uses more is ended.",
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
