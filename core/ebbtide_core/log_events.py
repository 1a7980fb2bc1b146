"""Facts about a job's output, and what is decided because of them; part of `ebbtide_core.events`."""

from ebbtide_core.event import Event
from ebbtide_core.frozen import frozen
from ebbtide_core.log_rules import LogMatch
from ebbtide_core.model import GpuId, JobId, NodeId


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
