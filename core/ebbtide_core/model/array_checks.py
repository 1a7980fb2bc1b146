"""Refuses what no array of jobs, and no task of one, may ask for."""

import re
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import WHOLE, Task, gpus

_PARAM: Final = r"[A-Za-z_][A-Za-z0-9_]*"


def check_task(task: Task) -> None:
    """Raise `SpecError` if the index or the params of a task are not allowed."""
    if not 0 <= task.index <= limits.MAX_ARRAY_INDEX:
        raise SpecError("--array", f"{task.index} is not between 0 and {limits.MAX_ARRAY_INDEX}")
    if len(task.params) > limits.MAX_PARAMS:
        raise SpecError("--param", f"{len(task.params)} are over the limit of {limits.MAX_PARAMS}")
    for name in task.params:
        if not re.fullmatch(_PARAM, name):
            raise SpecError("--param", f"{name[:40]!r} is not a name (letters, digits and _)")


def check_limits(max_concurrent: int, max_slots: int) -> None:
    """Raise `SpecError` unless an array may have these limits; 0 means no limit."""
    if not 0 <= max_concurrent <= limits.MAX_UNFINISHED_JOBS:
        raise SpecError("--max-concurrent", f"{max_concurrent} is not between 0 and {limits.MAX_UNFINISHED_JOBS}")
    if not 0 <= max_slots <= limits.MAX_GPUS * WHOLE:
        raise SpecError("--max-slots", f"{gpus(max_slots)} is not between 0 and {limits.MAX_GPUS}")
