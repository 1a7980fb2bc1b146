"""Finds the generator for a name, or the reader for a file."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ebbtide_core.model.spelling import choices

from ebbtide_sim.garbage import rarely_collected
from ebbtide_sim.workload import Workload, WorkloadError
from ebbtide_sim.workloads import google, nodes, openb, philly, plain, pollux, swf
from ebbtide_sim.workloads.bags import bags
from ebbtide_sim.workloads.fitgpp import fitgpp
from ebbtide_sim.workloads.hybrid import HybridMix, hybrid
from ebbtide_sim.workloads.table import opened

DEFAULT_FITGPP_JOBS: Final = 2**14
DEFAULT_BAGS_JOBS: Final = 10_000
MAX_JOBS: Final = 2**22
BEYOND: Final = "after the first {} jobs"


def load_workload(name_or_path: str, seed: int = 0, *, jobs: int | None = None, arrival: str = "submit") -> Workload:
    """Make a workload by the name of its generator (``fitgpp``, ``hybrid``, ``bags``), or read it from a file.

    Files are recognised by their name or header: SWF (``.swf``, ``.swf.gz``), our CSV, Philly, openb and Pollux CSV,
    Google 2011 task events. ``jobs`` is how many to make, or how many of a file's first ones to keep. ``arrival``
    (``submit`` or ``start``) is when a job of an SWF arrives. Raise `WorkloadError` if the file cannot be read.
    """
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise WorkloadError(f"--jobs-limit: {jobs} is not between 1 and {MAX_JOBS}")
    with rarely_collected():
        make = GENERATORS.get(name_or_path)
        return _read_first(name_or_path, jobs, arrival) if make is None else make(seed, jobs)


def _read_first(name: str, jobs: int | None, arrival: str) -> Workload:
    path = Path(name)
    if not os.path.isfile(path):  # unlike pathlib's, this is false for a name that is too long
        raise WorkloadError(f"{name}: neither a file nor one of {choices(name, GENERATORS)}")
    return _first(_read(path, arrival), jobs)


def _fitgpp(seed: int, jobs: int | None) -> Workload:
    return fitgpp(jobs or DEFAULT_FITGPP_JOBS, seed)


def _hybrid(seed: int, jobs: int | None) -> Workload:
    whole = HybridMix()
    tasks = jobs or whole.tasks
    return hybrid(seed, replace(whole, tasks=tasks, hours=whole.hours * tasks / whole.tasks))


def _bags(seed: int, jobs: int | None) -> Workload:
    return bags(jobs or DEFAULT_BAGS_JOBS, seed)


GENERATORS: Final[dict[str, Callable[[int, int | None], Workload]]] = {
    "fitgpp": _fitgpp,
    "hybrid": _hybrid,
    "bags": _bags,
}
READERS: Final[tuple[tuple[tuple[str, ...], Callable[[Path], Workload]], ...]] = (
    (plain.REQUIRED, plain.read_plain),
    (philly.COLUMNS, philly.read_philly),
    (openb.COLUMNS, openb.read_openb),
    (pollux.COLUMNS, pollux.read_pollux),
)


def _read(path: Path, arrival: str) -> Workload:
    first = _first_line(path)
    if path.name.endswith((".swf", ".swf.gz")) or first.startswith(";"):
        return swf.read_swf(path, swf.arrival_named(arrival))
    if arrival != "submit":
        raise WorkloadError(f"--arrival: {arrival!r} is for SWF logs only, {path} is none")
    header = {name.strip() for name in first.split(",")}
    for columns, read in READERS:
        if header & set(columns) and _names(header, columns):
            return read(path)
    if set(nodes.OPENB) <= header or set(nodes.REQUIRED) <= header:
        raise WorkloadError(f"{path}: lists nodes, not jobs: it is for --cluster")
    if first.count(",") == len(google.COLUMNS) - 1 and first.split(",")[0].isdigit():
        return google.read_google(path)
    raise WorkloadError(f"{path}:1: header: {first[:60]!r} is none of SWF, our CSV, Philly, openb, Pollux or Google")


def _names(header: set[str], columns: tuple[str, ...]) -> bool:
    """Return whether the header has most of ``columns``, so that the file is probably meant to be of this format."""
    return 2 * len(header & set(columns)) > len(columns)


def _first_line(path: Path) -> str:
    with opened(path) as text:
        return next((line.strip() for line in text if line.strip()), "")


def _first(workload: Workload, jobs: int | None) -> Workload:
    if jobs is None or jobs >= len(workload.jobs):
        return workload
    skipped = dict(workload.skipped) | {BEYOND.format(jobs): len(workload.jobs) - jobs}
    return replace(workload, jobs=workload.jobs[:jobs], skipped=skipped)
