"""Defines the events about a job's output, and the decision that follows from it; part of `ebbtide_core.events`."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.log_rules import LogAction
from ebbtide_core.model.types import GpuId, JobId, NodeId


@frozen
class LogMatch:
    """A line that a rule matched; ``gpus`` are the UUIDs of the GPUs of the process that printed it."""

    pattern: str
    action: LogAction
    line: str
    gpus: tuple[str, ...] = ()


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
