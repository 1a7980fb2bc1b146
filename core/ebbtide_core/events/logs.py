"""Facts about a job's output, and what is decided because of them; part of `ebbtide_core.events`."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.log_rules import LogMatch
from ebbtide_core.model.types import GpuId, JobId, NodeId


@frozen
class LogMatched(Event):
    """A rule was found in what the attempt printed on ``node``."""

    job: JobId
    attempt: int
    node: NodeId
    match: LogMatch


@frozen
class GpusExcluded(Event):
    """The job is not to get these ``gpus`` of ``node`` again."""

    job: JobId
    node: NodeId
    gpus: tuple[GpuId, ...]
    reason: str
