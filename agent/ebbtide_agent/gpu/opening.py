"""Opens GPU backends: real GPUs through NVML, fake ones through the same code over a directory, or none."""

import logging
from pathlib import Path

from ebbtide_agent.gpu import NONE, REAL, fake, is_fake
from ebbtide_agent.gpu.backend import GpuBackend, NoGpus
from ebbtide_agent.gpu.nvml import NvmlUnavailable, open_fake, open_nvml
from ebbtide_agent.gpu.process import NvmlProcess
from ebbtide_agent.gpu.profiles import parse_profile

log = logging.getLogger(__name__)


def open_in_process(gpus: str, state_dir: Path, in_use: bool) -> NvmlProcess | NoGpus:
    """Open a backend like `open_backend`'s that asks in a process of its own, and finds real GPUs later too. Blocks."""
    if gpus == NONE:
        return NoGpus()
    if is_fake(gpus):
        _set_up(gpus, state_dir, in_use)
    return NvmlProcess("fake" if is_fake(gpus) else REAL, state_dir)


def open_backend(gpus: str, state_dir: Path, in_use: bool) -> GpuBackend:
    """Open the backend for `auto` (real GPUs if there are any), `none`, or a fake profile kept in `state_dir`.

    With `in_use`, fake GPUs that are already there win over another profile. Raises ValueError for a wrong profile.
    """
    if is_fake(gpus):
        _set_up(gpus, state_dir, in_use)
        return open_fake(state_dir)
    if gpus == NONE:
        return NoGpus()
    try:
        return open_nvml()
    except NvmlUnavailable as error:
        log.info("event=no-gpus reason=%r", str(error))
        return NoGpus()


def _set_up(profile: str, state_dir: Path, in_use: bool) -> None:
    if not fake.set_up(state_dir, parse_profile(profile), keep=in_use):
        log.warning("event=profile-not-changed profile=%s reason='attempts are live on the GPUs there are'", profile)
