"""Keeps the measured rates of scripts at each number of GPUs, and fits speed-up curves through them.

The rate at a size is the median over the last jobs of the script. The curve is relative to the rate on one GPU. It
never falls: where more GPUs were slower, the sizes share their mean (isotonic regression, weighted by windows). Between
two sizes the curve is a straight line. Below the smallest size, speed is in proportion to the share. Beyond the largest
size the last slope goes on, so that policies try more GPUs where the speed still grows, and not where it is flat.

A step must be the same work at every size, as it is with `ebbtide.torch.accumulate`.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from ebbtide_core.estimates.work import Script, Speedup
from ebbtide_core.job.meter import MeasuredRate, Setting
from ebbtide_core.model.limits import MAX_GPUS
from ebbtide_core.model.types import WHOLE, JobId

JOBS_REMEMBERED: Final = 5
"""The last jobs of a script whose rates count at each size."""
WORTH: Final = 0.1
"""The speed that each further GPU must add at least to be of use, relative to the speed of one GPU."""


class ScriptRates:
    """The rates of all scripts, and the ``curves`` of the scripts that ran at two sizes or more."""

    def __init__(self) -> None:
        self.curves: dict[Script, Speedup] = {}
        self._known: dict[Script, dict[Setting, dict[JobId, MeasuredRate]]] = {}

    def add(self, script: Script, job: JobId, setting: Setting, rate: MeasuredRate) -> None:
        """Take in the rate of ``job`` at ``setting``, in place of an earlier rate of the same job there."""
        known = self._known.setdefault(script, {})
        jobs = known.setdefault(setting, {})
        jobs.pop(job, None)
        jobs[job] = rate
        if len(jobs) > JOBS_REMEMBERED:
            del jobs[next(iter(jobs))]
        if (curve := _curve(known)) is not None:
            self.curves[script] = curve

    def typical(self, script: Script, setting: Setting) -> float | None:
        """Return the rate of the script at ``setting``, in steps per second; None if it is not known."""
        jobs = self._known.get(script, {}).get(setting)
        return median(rate.steps_per_s for rate in jobs.values()) if jobs else None


def _curve(known: dict[Setting, dict[JobId, MeasuredRate]]) -> Speedup | None:
    """Return the curve for the GPU model with the most measured sizes; None if it has fewer than two."""
    sizes: dict[str, dict[int, Setting]] = {}
    for setting in known:
        # The speed of a share is that beside other attempts: alone on its GPU, a share is as fast as the whole GPU.
        if setting.alone is (setting.share >= WHOLE):
            of_model = sizes.setdefault(setting.model, {})
            if setting.share not in of_model or setting.nodes < of_model[setting.share].nodes:
                of_model[setting.share] = setting
    most = max(sizes.values(), key=len, default={})
    if len(most) < 2:
        return None
    points = []
    for share in sorted(most):
        rates = known[most[share]].values()
        points.append((share, median(rate.steps_per_s for rate in rates), sum(rate.samples for rate in rates)))
    return fit(points)


def fit(points: Sequence[tuple[int, float, float]]) -> Speedup | None:
    """Fit the curve through ``points`` (share in parts, rate, weight), at least two, in ascending order of share.

    The curve is 1 at one GPU. Return None if the rate at the smallest share is 0.
    """
    rates = _rising([(rate, weight) for _, rate, weight in points])
    known = [(share, rate) for (share, _, _), rate in zip(points, rates, strict=True)]
    (before, slower), (last, rate) = known[-2:]
    far = MAX_GPUS * WHOLE
    if last < far:
        known.append((far, rate + (rate - slower) * (far - last) / (last - before)))
    at_one = Speedup(tuple(known))(WHOLE)
    if not known[0][1] > 0:
        return None
    return Speedup(tuple((share, rate / at_one) for share, rate in known))


def _rising(values: Iterable[tuple[float, float]]) -> list[float]:
    """Return the non-falling values closest to the weighted ``values`` (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in values:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            later, later_weight, later_count = pools.pop()
            earlier, earlier_weight, earlier_count = pools.pop()
            both = earlier_weight + later_weight
            mean = (earlier * earlier_weight + later * later_weight) / both
            pools.append((mean, both, earlier_count + later_count))
    return [value for value, _, count in pools for _ in range(count)]


def largest_of_use(sizes: Sequence[int], speedup: Speedup) -> int:
    """Return the largest of the ascending ``sizes`` that is of use.

    A size is of use if each GPU that it has more than the next smaller such size adds at least `WORTH`.
    """
    best = sizes[0]
    for size in sizes[1:]:
        if speedup(size) - speedup(best) >= WORTH * (size - best) / WHOLE:
            best = size
    return best
