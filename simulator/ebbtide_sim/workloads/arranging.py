"""Turns the jobs of a trace into a workload: sorted, and starting at 0."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ebbtide_sim.workload import SimJob, Workload

BAG_GAP_S: Final = 60.0
"""The longest gap within a bag, in seconds: a new task within it continues the bag (seed 001, section III-C)."""


def workload_of(name: str, jobs: Iterable[SimJob], skipped: Mapping[str, int], notes: tuple[str, ...]) -> Workload:
    """Sort a trace's jobs by submission (ties keep their order) and shift them so that the first arrives at 0."""
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    start = ordered[0].submit_s if ordered else 0.0
    if start:
        ordered = [replace(job, submit_s=job.submit_s - start) for job in ordered]
    return Workload(name, ordered, {why: count for why, count in skipped.items() if count}, notes)


def bags_of(runs: Iterable[tuple[str, float, float]]) -> list[str]:
    """Return the bag of each of ``runs`` (user, start, end), in their order; "" for runs without a user.

    A bag is a user's runs of which each starts during another or within `BAG_GAP_S` after its end (seed 001, III-C).
    """
    known = list(runs)
    bags = [""] * len(known)
    last: dict[str, tuple[int, float]] = {}
    starts = [start for _, start, _ in known]
    for index in sorted(range(len(known)), key=starts.__getitem__):
        user, start, end = known[index]
        if not user:
            continue
        number, until = last.get(user, (0, float("-inf")))
        number += start > until + BAG_GAP_S
        last[user] = (number, max(until, end))
        bags[index] = f"{user}.{number}"
    return bags
