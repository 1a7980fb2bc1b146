"""Checks and expands the name of the file that a job's output is appended to, as in Slurm's ``--output``."""

import re
from collections.abc import Mapping
from typing import Final

from ebbtide_core.model.choices import JobId, NodeId

SLURM: Final = "slurm"
"""The pattern that stands for the file name that Slurm would choose."""
_PLACEHOLDER: Final = r"%(.?)"
_MEANINGS: Final = {
    "j": "the job's id",
    "A": "the array's id",
    "a": "the index in it",
    "x": "the job's name",
    "N": "the node's name",
    "%": "a percent sign",
}


def check(pattern: str) -> None:
    """Raise ``ValueError`` if ``pattern`` has an unknown placeholder."""
    for letter in re.findall(_PLACEHOLDER, pattern):
        if letter not in _MEANINGS:
            known = ", ".join(f"%{known}" for known in _MEANINGS)
            raise ValueError(f"%{letter} is not known: there are {known}")


def expand(pattern: str, job: JobId, name: str, node: NodeId, first: NodeId) -> str:
    """Return the file of ``node``, relative to the job's working directory or absolute; empty if it has none.

    Only a pattern with %N gives every node of a job a file of its own; otherwise only the node ``first`` has one.
    """
    if node != first and "N" not in re.findall(_PLACEHOLDER, pattern):
        return ""
    array, _, index = job.partition(".")
    if pattern == SLURM:
        pattern = "slurm-%A_%a.out" if index else "slurm-%j.out"
    values: Mapping[str, str] = {
        "j": job,
        "A": array,
        "a": index or "0",
        "x": _plain(name),
        "N": _plain(node),
        "%": "%",
    }
    return re.sub(_PLACEHOLDER, lambda found: values.get(found[1], found[0]), pattern)


def _plain(name: str) -> str:
    """Make ``name`` one component of a path."""
    return name.replace("/", "_") if name.strip(".") else "_"
