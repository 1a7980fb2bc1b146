"""Defines the events about a job's output, and the decision that follows from it; part of `ebbtide_core.events`."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.log_rules import LogMatch
from ebbtide_core.model.types import GpuId, JobId, NodeId


@frozen
class LogMatched(Event):
    """A log rule matched a line that the attempt printed on ``node``."""

    job: JobId
    attempt: int
    node: NodeId
    match: LogMatch


@frozen
class GpusExcluded(Event):
    """The job must not get these ``gpus`` of ``node`` again."""

    job: JobId
    node: NodeId
    gpus: tuple[GpuId, ...]
    reason: str
