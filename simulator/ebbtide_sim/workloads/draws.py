"""Random draws that the generators share."""

import numpy as np
from numpy.typing import NDArray

from ebbtide_sim.workload import WorkloadError

Floats = NDArray[np.float64]


def truncated_normal(rng: np.random.Generator, mean: float, std: float, low: float, high: float, size: int) -> Floats:
    """Draw from a normal distribution truncated (not clipped) at ``low`` and ``high``, by inversion.

    ``mean`` and ``std`` are those before truncation. With ``std`` 0 every draw is ``mean``, kept within the bounds.
    """
    from scipy.special import ndtr, ndtri  # imported here because it takes a while

    if not (np.isfinite([mean, std, low, high]).all() and std >= 0 and low <= high):
        raise WorkloadError(f"truncated normal: mean {mean:g}, std {std:g}, from {low:g} to {high:g} is none")
    if std == 0 or low == high:
        return np.full(size, min(max(mean, low), high))
    # In the upper tail the distribution function is too close to 1 to invert, so it is mirrored into the lower tail.
    sign = -1.0 if low > mean else 1.0
    ends = sorted((sign * (low - mean) / std, sign * (high - mean) / std))
    below, above = ndtr(ends)
    draws = mean + sign * std * ndtri(below + (above - below) * rng.random(size))
    return np.asarray(np.clip(draws, low, high), dtype=np.float64)


def heavy_tailed(rng: np.random.Generator, sigma: float, cut: float, size: int) -> Floats:
    """Draw from a lognormal distribution cut at ``cut`` times its mean, and scale the draws to mean 1.

    ``sigma`` is the standard deviation of the logarithm.
    """
    draws = np.minimum(rng.lognormal(-sigma * sigma / 2, sigma, size), cut)
    return np.asarray(draws / _cut_mean(sigma, cut), dtype=np.float64)


def _cut_mean(sigma: float, cut: float) -> float:
    """Return the mean of min(X, cut) for lognormal X with mean 1 (Black's formula)."""
    from scipy.special import ndtr

    if sigma == 0:
        return min(1.0, cut)
    z = np.log(cut) / sigma
    return float(ndtr(z - sigma / 2) + cut * ndtr(-z - sigma / 2))
