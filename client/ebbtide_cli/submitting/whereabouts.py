"""Define the options for which nodes and GPUs a job may use."""

from typing import Any, Final

import click
from ebbtide_core.model.constraints import NO_NEEDS, Needs, Selector
from ebbtide_core.model.types import NodeId

from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.verb import SETTING, SIZE

OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--select",
        metavar="K=V",
        multiple=True,
        type=SETTING,
        help="Only nodes with this label (several: all of them; K=V1|V2: either value).",
    ),
    click.option(
        "--tolerate", metavar="NAME", multiple=True, help="Nodes with this taint will do, too (several: each of them)."
    ),
    click.option("--on", metavar="NODE", multiple=True, help="Only this node (several: any of them)."),
    click.option("--exclude", metavar="NODE", multiple=True, help="Not this node (several)."),
    click.option(
        "--gpu-type",
        metavar="MODEL",
        multiple=True,
        help="Only GPUs whose model has these words, such as a100 or 'rtx 4090' (several: any of them).",
    ),
    click.option("--compute-capability", metavar="X.Y", default="", help="Only GPUs with at least this, such as 8.0."),
    click.option(
        "--gpu-total-mem",
        metavar="SIZE",
        type=SIZE,
        help="Only GPUs with so much memory in all, whatever the job gets of it (that is --gpu-mem).",
    ),
    click.option(
        "--mixed-gpus", is_flag=True, help="Its GPUs may be of several models (default: all of one, on all nodes)."
    ),
    click.option(
        "--require-path",
        metavar="PATH",
        multiple=True,
        help="Only nodes where this exists; each finds out when the job is to start there (several: all of them).",
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    needs = Needs(
        select=tuple(Selector(key, tuple(values.split("|"))) for key, values in given["select"]),
        tolerate=given["tolerate"],
        on=tuple(map(NodeId, given["on"])),
        exclude=tuple(map(NodeId, given["exclude"])),
        gpu_types=given["gpu_type"],
        compute_capability=given["compute_capability"],
        gpu_total_mem_bytes=given["gpu_total_mem"] or 0,
        mixed_gpus=given["mixed_gpus"],
        require_paths=given["require_path"],
    )
    return {} if needs == NO_NEEDS else {"needs": needs}
