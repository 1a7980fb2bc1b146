"""When a GPU is lost for certain, so that its jobs are better off elsewhere.

Whatever else goes wrong makes a GPU unhealthy: nothing new starts on it, and what runs there goes on. A driver that
does not answer, above all, says nothing of the GPU: what runs may well go on behind a stuck NVML.
"""

from typing import Final

CODES: Final = frozenset({15, 16, 28})
"""NVML's codes that say so: the GPU is lost, must be reset, is not found any more."""

XIDS: Final = frozenset({79, 95, 119, 120, 140})
"""The driver's errors after which no context on the GPU computes on.

79 fallen off the bus, 95 uncontained ECC error, 119 and 120 its system processor does not answer, 140 unrecovered ECC
error.
"""
