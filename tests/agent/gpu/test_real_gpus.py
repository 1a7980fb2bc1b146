"""The same door on real hardware: what NVML says of the GPUs of this machine."""

import pytest
from ebbtide_agent.gpu.nvml import has_real_gpus, open_nvml

pytestmark = pytest.mark.gpu


def test_there_are_gpus_with_uuids_and_memory() -> None:
    assert has_real_gpus()
    gpus = open_nvml().gpus()
    assert all(gpu.uuid.startswith("GPU-") and gpu.mem_bytes > 2**30 for gpu in gpus)
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)


def test_each_can_be_read() -> None:
    backend = open_nvml()
    for gpu in backend.gpus():
        reading = backend.read(gpu.uuid)
        assert reading.healthy
        assert reading.mem_used_bytes is None or 0 <= reading.mem_used_bytes <= gpu.mem_bytes
        assert reading.utilisation is None or 0 <= reading.utilisation <= 1
