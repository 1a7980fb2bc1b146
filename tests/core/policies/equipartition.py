"""Clusters under equipartition, and jobs that come to them together or one after the other."""

from fractions import Fraction
from typing import Any

from ebbtide_core.events import ReleaseRequested
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import gpus

from tests.core.lab import Lab

PAPER = {"min_work_s": "0", "resize_after_s": "0", "gain_restarts": "0"}
"""The malleable policy without anything that keeps a job from being resized."""


def moldable(gpus: int, nodes: str = "a") -> Lab:
    return Lab("moldable-equipartition", nodes, gpus)


def malleable(gpus: int, nodes: str = "a", **options: str) -> Lab:
    return Lab("malleable-equipartition", nodes, gpus, **(PAPER | options))


def together(lab: Lab, *ranges: tuple[float | str, float | str], **spec: Any) -> list[Job]:
    """Jobs that are looked at in the same pass."""
    return released(lab, [lab.submit(low, high, hold=True, **spec) for low, high in ranges])


def released(lab: Lab, jobs: list[Job]) -> list[Job]:
    """Jobs that were held, all of them released before anything is decided."""
    for job in jobs:
        lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    lab.settle()
    return jobs


def settled(lab: Lab, *ranges: tuple[float | str, float | str], **spec: Any) -> list[Job]:
    """Jobs that came one after the other, and run."""
    jobs = []
    for low, high in ranges:
        jobs.append(lab.submit(low, high, **spec))
        lab.settle()
    return jobs


def share(job: Job) -> Fraction:
    """The GPUs that ``job`` has, or is to have."""
    return gpus(job.planned.share) if job.planned is not None else Fraction(0)


def shares(jobs: list[Job]) -> list[Fraction]:
    return [share(job) for job in jobs]
