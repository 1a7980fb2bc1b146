"""Leaves out of each heartbeat the GPUs that read as they did in the one before it on the same stream."""

from typing import Final

from ebbtide_protos.v1 import agent_pb2

EXACT_EVERY: Final = 5
"""Each heartbeat of so many has every reading that differs at all, so that what is shown is not off for long."""
UTILISATION: Final = 0.05
"""What utilisation may differ by; below that any difference counts, as it shows whether a GPU is used at all."""
TEMPERATURE_C: Final = 2
POWER: Final = 0.05
"""What power may differ by, as a share of itself."""


class Deltas:
    """Shortens the heartbeats of one stream, in the order in which they are sent."""

    def __init__(self) -> None:
        self._known: dict[str, agent_pb2.GpuReading] = {}
        self._count = 0

    def shorten(self, heartbeat: agent_pb2.Heartbeat) -> None:
        """Leave out of a complete heartbeat, which is sent next, what the master knows already."""
        self._count += 1
        if [reading.uuid for reading in heartbeat.gpus] != list(self._known):
            self._known = {reading.uuid: _copy(reading) for reading in heartbeat.gpus}
            return
        alike = _is_equal if self._count % EXACT_EVERY == 0 else _is_close
        changed = [_copy(reading) for reading in heartbeat.gpus if not alike(reading, self._known[reading.uuid])]
        self._known |= {reading.uuid: reading for reading in changed}
        heartbeat.ClearField("gpus")
        heartbeat.gpus.extend(changed)
        heartbeat.delta = True


def _copy(reading: agent_pb2.GpuReading) -> agent_pb2.GpuReading:
    copy = agent_pb2.GpuReading()
    copy.CopyFrom(reading)
    return copy


def _is_equal(reading: agent_pb2.GpuReading, known: agent_pb2.GpuReading) -> bool:
    return reading == known


def _is_close(reading: agent_pb2.GpuReading, known: agent_pb2.GpuReading) -> bool:
    """Return whether only what fluctuates differs, and only a little."""
    near, close = _copy(reading), True
    for name, most in (
        ("utilisation", UTILISATION),
        ("temperature_c", TEMPERATURE_C),
        ("power_w", POWER * known.power_w),
    ):
        if reading.HasField(name) and known.HasField(name):  # type: ignore[arg-type]  # a name in a variable
            close = close and abs(getattr(reading, name) - getattr(known, name)) <= most
            setattr(near, name, getattr(known, name))
    used = min(reading.utilisation, known.utilisation) >= UTILISATION or reading.utilisation == known.utilisation
    return close and used and near == known
