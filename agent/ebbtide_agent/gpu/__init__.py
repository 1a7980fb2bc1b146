"""GPU backends: real GPUs through NVML, fake ones through the same code over a directory, or none."""

import logging
from pathlib import Path

from ebbtide_agent.gpu import fake
from ebbtide_agent.gpu.backend import GpuBackend, NoGpus
from ebbtide_agent.gpu.nvml import NvmlBackend, NvmlUnavailable, open_nvml
from ebbtide_agent.gpu.profiles import parse_profile

log = logging.getLogger(__name__)

REAL = "auto"
NONE = "none"


def is_fake(gpus: str) -> bool:
    """Whether the option asks for fake GPUs; it is then a profile."""
    return gpus not in (REAL, NONE)


def open_fake(state_dir: Path) -> NvmlBackend:
    """The fake GPUs of this directory. Raises NvmlUnavailable, and ValueError if it holds none."""
    library = fake.FakeNvml(state_dir)
    return NvmlBackend(library, kind="fake", numa_node=library.numa_node)


def open_backend(gpus: str, state_dir: Path, in_use: bool) -> GpuBackend:
    """The backend for `auto` (real GPUs if there are any), `none`, or a fake profile kept in `state_dir`.

    With `in_use`, fake GPUs that are already there win over another profile. Raises ValueError for a wrong profile.
    """
    if is_fake(gpus):
        if not fake.set_up(state_dir, parse_profile(gpus), keep=in_use):
            log.warning("event=profile-not-changed profile=%s reason='attempts are live on the GPUs there are'", gpus)
        return open_fake(state_dir)
    if gpus == NONE:
        return NoGpus()
    try:
        return open_nvml()
    except NvmlUnavailable as error:
        log.info("event=no-gpus reason=%r", str(error))
        return NoGpus()
