"""What a session has that says nothing of it."""

from dataclasses import replace

from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_protos.v1 import job_pb2


def with_idle_limit(spec: JobSpec, message: job_pb2.JobSpec, settings: Settings) -> JobSpec:
    """The job, which may be unused for as long as the settings say unless it says itself; 0 stands for ever."""
    if not spec.kind.is_session:
        return spec
    said = message.HasField("idle_limit_s")
    return replace(spec, idle_limit_s=(message.idle_limit_s or None) if said else settings.idle_s)
