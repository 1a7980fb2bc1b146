"""Define the options for which nodes and GPUs a job may use."""

from typing import Any, Final

import click
from ebbtide_core.model.choices import NodeId
from ebbtide_core.model.constraints import NO_NEEDS, Needs, Selector

from ebbtide_cli.commands.verb import SETTING, SIZE
from ebbtide_cli.submitting.topic import Given, Option

TITLE: Final = "Where it runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--select",
        metavar="K=V",
        multiple=True,
        type=SETTING,
        help="Run only on nodes with this label; K=V1|V2 accepts either value; repeated: all must hold.",
    ),
    click.option("--tolerate", metavar="NAME", multiple=True, help="Accept nodes with this taint; may be repeated."),
    click.option("--on", metavar="NODE", multiple=True, help="Run only on this node; repeated: on any of them."),
    click.option("--exclude", metavar="NODE", multiple=True, help="Do not run on this node; may be repeated."),
    click.option(
        "--gpu-type",
        metavar="MODEL",
        multiple=True,
        help="Use only GPUs whose model has these words, such as a100 or 'rtx 4090'; repeated: any of them.",
    ),
    click.option(
        "--compute-capability",
        metavar="X.Y",
        default="",
        help="Use only GPUs with at least this compute capability, such as 8.0.",
    ),
    click.option(
        "--gpu-total-mem",
        metavar="SIZE",
        type=SIZE,
        help="Use only GPUs that have this much memory in all; --gpu-mem says how much of it the job gets.",
    ),
    click.option(
        "--mixed-gpus", is_flag=True, help="Accept GPUs of different models (default: all of one model, on all nodes)."
    ),
    click.option(
        "--require-path",
        metavar="PATH",
        multiple=True,
        help=(
            "Run only on nodes where this path exists, which a node checks before the start; repeated: all must exist."
        ),
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
