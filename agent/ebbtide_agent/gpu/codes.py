"""Define what each of NVML's codes means for a GPU, in one table, which docs/explanation/gpu-notes.md explains.

A code that is not in the table says that something is wrong with this call: the GPU is unhealthy in this reading.
"""

from enum import Enum, auto
from typing import Final


class CodeMeaning(Enum):
    """What follows from a code."""

    NO_VALUE = auto()  # this question has no answer here; nothing is wrong with the GPU
    GPU_GONE = auto()  # this GPU is offline until it answers again; the others go on
    NO_DRIVER = auto()  # there is no driver to ask, and the node has no GPUs until there is one
    DRIVER_CHANGED = auto()  # every GPU is offline for new jobs; those that run go on
    TROUBLE = auto()  # this GPU is unhealthy in this reading


MEANINGS: Final = {
    3: CodeMeaning.NO_VALUE,  # not supported
    4: CodeMeaning.NO_VALUE,  # no permission
    6: CodeMeaning.NO_VALUE,  # not found
    7: CodeMeaning.NO_VALUE,  # insufficient size: a list that grew between two calls
    9: CodeMeaning.NO_DRIVER,  # driver not loaded
    12: CodeMeaning.NO_DRIVER,  # library not found
    13: CodeMeaning.NO_VALUE,  # function not found: an older driver
    15: CodeMeaning.GPU_GONE,  # GPU is lost: fallen off the bus
    16: CodeMeaning.GPU_GONE,  # reset required
    18: CodeMeaning.DRIVER_CHANGED,  # library and kernel module are of different versions
    21: CodeMeaning.NO_VALUE,  # no data
    25: CodeMeaning.NO_VALUE,  # argument version mismatch: an older driver
    26: CodeMeaning.NO_VALUE,  # deprecated
    27: CodeMeaning.NO_VALUE,  # not ready
    28: CodeMeaning.GPU_GONE,  # GPU not found
}

_DRIVER_CHANGED: Final = "the driver was upgraded under us: reload it or reboot"


def meaning(error: Exception) -> CodeMeaning:
    """Return what an NVMLError means; its code is `value`."""
    return MEANINGS.get(getattr(error, "value", 0), CodeMeaning.TROUBLE)


def reason(error: Exception) -> str:
    """Return the error in words, for the administrator of the node."""
    return _DRIVER_CHANGED if meaning(error) is CodeMeaning.DRIVER_CHANGED else str(error)
