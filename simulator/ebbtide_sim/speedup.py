"""Speed-up curves: how much faster a job is on more GPUs, or slower on a share of one."""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from ebbtide_core.estimates.work import LINEAR, Speedup
from ebbtide_core.model.types import WHOLE, gpus

__all__ = ["CURVES", "DL_SUBLINEAR", "LINEAR", "POLLUX_BERT", "POLLUX_RESNET18", "Speedup", "curve"]


def curve(points: Iterable[tuple[int, float]]) -> Speedup:
    """Make the speed-up of straight lines from (0, 0) through ``points`` (parts, speed), constant after the last.

    Raise ``ValueError`` unless parts increase, speeds do not fall, and the speed at one GPU is 1.
    """
    known = tuple(points)
    for (low, slow), (high, fast) in pairwise(((0, 0.0), *known)):
        if high <= low:
            raise ValueError(f"{gpus(high)} GPUs do not come after {gpus(low)}")
        if not slow <= fast < math.inf or fast == 0:
            raise ValueError(f"speed {fast:g} at {gpus(high)} GPUs is not at least {slow:g}, finite and above 0")
    speedup = Speedup(known)
    if not known or not math.isclose(speedup(WHOLE), 1.0, rel_tol=1e-9):
        at_one = f"{speedup(WHOLE):g}" if known else "unknown"
        raise ValueError(f"the speed at 1 GPU is {at_one}, it must be 1")
    return speedup


DL_SUBLINEAR: Final = curve(
    ((WHOLE // 2, 0.75), (WHOLE, 1.0), (2 * WHOLE, 1.95), (4 * WHOLE, 3.8), (8 * WHOLE, 5.9), (16 * WHOLE, 9.3)),
)
"""A sublinear, never falling curve in the manner of seed 001's Fig. 1, whose values are not published.

Measured: at 1/2, two equal trainings on one P100 each run at 0.69 to 0.81 of full speed (ResNet-50 with batches of 16
to 64, ResNet-18 with 16; throughputs published with Gavel, OSDI 2020, where on a K80 sharing gains nothing: 0.47 to
0.50). At 4 and 16 GPUs, the mean of ResNet-18 (3.76, 10.75) and BERT (3.85, 7.81), at a fixed batch per GPU, on nodes
with four T4 each (measurements published with Pollux, OSDI 2021).
Assumed: 2 and 8 GPUs lie between on a logarithmic scale (eight GPUs on two nodes were measured to be slower than the
four of one, which a curve that never falls cannot show); a third task on a GPU adds nothing to the 1.5 of two, so each
of n runs at 1.5/n, faster than 1/n as seed 001 found; beyond 16 GPUs nothing is gained.
"""

POLLUX_RESNET18: Final = curve(
    ((WHOLE // 2, 0.75), (WHOLE, 1.0), (4 * WHOLE, 3.76), (8 * WHOLE, 3.76), (12 * WHOLE, 7.29), (16 * WHOLE, 10.75)),
)
"""ResNet-18 on CIFAR-10, batch 129 per GPU, four T4 per node, as measured for Pollux (OSDI 2021); the 3.60 of two nodes
is raised to the 3.76 of one. Shares as in `DL_SUBLINEAR`."""

POLLUX_BERT: Final = curve(
    (
        (WHOLE // 2, 0.75), (WHOLE, 1.0), (2 * WHOLE, 2.0), (4 * WHOLE, 3.85), (8 * WHOLE, 3.85), (12 * WHOLE, 6.31),
        (16 * WHOLE, 7.81),
    ),
)  # fmt: skip
"""BERT, batch 12 per GPU, four T4 per node, as measured for Pollux (OSDI 2021), where the network between nodes
holds it back; the 2.90 of two nodes is raised to the 3.85 of one. Shares as in `DL_SUBLINEAR`."""

CURVES: Final[Mapping[str, Speedup]] = MappingProxyType(
    {
        "linear": LINEAR,
        "dl-sublinear": DL_SUBLINEAR,
        "pollux-resnet18": POLLUX_RESNET18,
        "pollux-bert": POLLUX_BERT,
    }
)
