"""What fake GPUs a node has: `4xA100-40GB`, or a TOML file for a mixture.

A file lists its GPUs in order, each with a known model or with a memory size of its own:

    [[gpu]]
    model = "RTX4090"
    count = 2

    [[gpu]]
    model = "Prototype"
    mem_mib = 65536
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
MAX_GPUS = 64

# What the driver reports as total memory, in MiB.
_MODELS_MIB = {
    "A10": 23028,
    "A30": 24576,
    "A40": 46068,
    "A100-40GB": 40960,
    "A100-80GB": 81920,
    "A6000": 49140,
    "B200": 183359,
    "GTX1080Ti": 11264,
    "H100-80GB": 81559,
    "H200": 143771,
    "L4": 23034,
    "L40S": 46068,
    "P100-16GB": 16384,
    "RTX2080Ti": 11264,
    "RTX3090": 24576,
    "RTX4090": 24564,
    "RTX5090": 32607,
    "T4": 15360,
    "V100-16GB": 16384,
    "V100-32GB": 32768,
}
KNOWN_MODELS = tuple(_MODELS_MIB)
_BY_FOLDED_NAME = {name.casefold(): name for name in _MODELS_MIB}


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """Model and memory of one fake GPU."""

    model: str
    mem_bytes: int


def parse_profile(profile: str) -> tuple[FakeGpu, ...]:
    """The GPUs that `COUNTxMODEL` or the path of a TOML file stands for. Raises ValueError with one line."""
    if profile.endswith(".toml"):
        return _from_file(Path(profile))
    match = re.fullmatch(r"(\d{1,4})x(\S+)", profile, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"GPU profile {profile!r} is neither COUNTxMODEL, such as 4xA100-40GB, nor a .toml file; {_known()}"
        )
    return (_known_gpu(match[2], profile),) * _count(int(match[1]), profile)


def _from_file(path: Path) -> tuple[FakeGpu, ...]:
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"GPU profile {path}: {error}") from None
    entries = content.get("gpu")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"GPU profile {path}: needs at least one [[gpu]] table")
    gpus = tuple(gpu for entry in entries for gpu in _from_entry(entry, str(path)))
    _count(len(gpus), str(path))
    return gpus


def _from_entry(entry: dict[str, Any], profile: str) -> tuple[FakeGpu, ...]:
    match entry:
        case {"model": str(model), "mem_mib": int(mem_mib)} if mem_mib > 0:
            gpu = FakeGpu(model, mem_mib * MIB)
        case {"model": str(model)} if "mem_mib" not in entry:
            gpu = _known_gpu(model, profile)
        case _:
            raise ValueError(f"GPU profile {profile}: a [[gpu]] needs a model and, if given, a positive mem_mib")
    count = entry.get("count", 1)
    if not isinstance(count, int):
        raise ValueError(f"GPU profile {profile}: count must be a whole number, not {count!r}")
    return (gpu,) * _count(count, profile)


def _known_gpu(model: str, profile: str) -> FakeGpu:
    name = _BY_FOLDED_NAME.get(model.casefold())
    if name is None:
        raise ValueError(f"unknown GPU model {model!r} in profile {profile!r}; {_known()}")
    return FakeGpu(name, _MODELS_MIB[name] * MIB)


def _count(count: int, profile: str) -> int:
    if not 1 <= count <= MAX_GPUS:
        raise ValueError(f"GPU profile {profile!r}: count must be 1 to {MAX_GPUS}, not {count}")
    return count


def _known() -> str:
    return f"known models: {', '.join(KNOWN_MODELS)}"
