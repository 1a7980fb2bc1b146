"""What a job asks of nodes and GPUs, between the wire and the core."""

from ebbtide_core.model.constraints import Needs, Selector
from ebbtide_core.model.types import NodeId

from ebbtide_protos.v1 import job_pb2


def needs_from_message(message: job_pb2.Needs) -> Needs:
    """What is asked for; the core validates it."""
    return Needs(
        select=tuple(Selector(wanted.key, tuple(wanted.values)) for wanted in message.select),
        tolerate=tuple(message.tolerate),
        on=tuple(map(NodeId, message.on)),
        exclude=tuple(map(NodeId, message.exclude)),
        gpu_types=tuple(message.gpu_types),
        compute_capability=message.compute_capability,
        gpu_total_mem_bytes=message.gpu_total_mem_bytes,
        mixed_gpus=message.mixed_gpus,
        require_paths=tuple(message.require_paths),
    )


def needs_to_message(needs: Needs) -> job_pb2.Needs:
    """The same on the wire."""
    return job_pb2.Needs(
        select=[job_pb2.Selector(key=wanted.key, values=wanted.values) for wanted in needs.select],
        tolerate=needs.tolerate,
        on=needs.on,
        exclude=needs.exclude,
        gpu_types=needs.gpu_types,
        compute_capability=needs.compute_capability,
        gpu_total_mem_bytes=needs.gpu_total_mem_bytes,
        mixed_gpus=needs.mixed_gpus,
        require_paths=needs.require_paths,
    )
