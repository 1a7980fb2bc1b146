"""Parse which fake GPUs a node has: `4xA100-40GB`, a machine's name such as `dgx-h100`, or a TOML file for a mixture.

    2xRTX3090-nvlink           joined in pairs by NVLink bridges
    1xA100-40GB:1g.5gb*7       cut into MIG slices; several kinds: 3g.20gb,2g.10gb,1g.5gb*2

A file lists its GPUs in order, each with a known model or with a memory size of its own. GPUs are numbered from 0:

    nvlinks = [[0, 1]]         # each group of GPUs that reach each other by NVLink
    switches = [[0, 1]]        # by a PCIe switch

    [[gpu]]
    model = "RTX4090"
    count = 2
    numa_node = 0

    [[gpu]]
    model = "Prototype"
    mem_mib = 65536

    [[gpu]]
    model = "A100-80GB"
    mig = "3g.40gb*2"
"""

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

MIB = 1024 * 1024
MAX_GPUS = 64

_Group = tuple[int, ...]

# Total memory in MiB and compute capability, as the driver reports them.
_MODELS: Final = {
    "A10": (23028, "8.6"),
    "A30": (24576, "8.0"),
    "A40": (46068, "8.6"),
    "A100-40GB": (40960, "8.0"),
    "A100-80GB": (81920, "8.0"),
    "A6000": (49140, "8.6"),
    "B200": (183359, "10.0"),
    "GTX1080Ti": (11264, "6.1"),
    "H100-80GB": (81559, "9.0"),
    "H200": (143771, "9.0"),
    "L4": (23034, "8.9"),
    "L40S": (46068, "8.9"),
    "P100-16GB": (16384, "6.0"),
    "RTX2080Ti": (11264, "7.5"),
    "RTX3090": (24576, "8.6"),
    "RTX4090": (24564, "8.9"),
    "RTX5090": (32607, "12.0"),
    "T4": (15360, "7.5"),
    "V100-16GB": (16384, "7.0"),
    "V100-32GB": (32768, "7.0"),
}
KNOWN_MODELS = tuple(_MODELS)
_BY_FOLDED_NAME = {name.casefold(): name for name in _MODELS}
_CAN_BE_CUT = ("A30", "A100-40GB", "A100-80GB", "H100-80GB", "H200", "B200")
_MOST_SLICES = 7
# A slice offers a little less than its name says: 4864 MiB of "5gb".
_OF_SLICE = 0.95


@dataclass(frozen=True, slots=True)
class FakeSlice:
    """One MIG slice of a fake GPU."""

    model: str
    mem_bytes: int


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """One fake GPU; if it has slices, it offers these."""

    model: str
    mem_bytes: int
    compute_capability: str = ""
    numa_node: int | None = None
    slices: tuple[FakeSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The fake GPUs of a node, and how they reach each other; groups are indices into `gpus`."""

    gpus: tuple[FakeGpu, ...]
    nvlinks: tuple[_Group, ...] = ()
    switches: tuple[_Group, ...] = ()


def parse_profile(profile: str) -> Profile:
    """Return the GPUs that a profile stands for: see the module. Raises ValueError with one line."""
    if profile.endswith(".toml"):
        return _from_file(Path(profile))
    if profile.casefold() in _MACHINES:
        return _machine(*_MACHINES[profile.casefold()])
    match = re.fullmatch(r"(\d{1,4})x([^\s:]+?)(-nvlink)?(?::(\S+))?", profile, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"GPU profile {profile!r} is neither COUNTxMODEL, such as 4xA100-40GB, nor a .toml file; {_known()}"
        )
    count = _count(int(match[1]), profile)
    gpu = _cut(_known_gpu(match[2], profile), match[4] or "", profile)
    pairs = tuple((place, place + 1) for place in range(0, count - 1, 2)) if match[3] else ()
    return Profile((gpu,) * count, nvlinks=pairs)


# By name: a model, how many of it, and whether pairs of them share a PCIe switch. All are joined by NVLink switches.
_MACHINES: Final = {
    "dgx-a100": ("A100-80GB", 8, True),
    "dgx-h100": ("H100-80GB", 8, False),
    "dgx-h200": ("H200", 8, False),
    "dgx-b200": ("B200", 8, False),
}


def _machine(model: str, count: int, in_pairs: bool) -> Profile:
    """Return a machine with two NUMA nodes, each with half of the GPUs."""
    gpu = _known_gpu(model, model)
    gpus = tuple(replace(gpu, numa_node=2 * place // count) for place in range(count))
    pairs = tuple((place, place + 1) for place in range(0, count, 2))
    return Profile(gpus, nvlinks=(tuple(range(count)),), switches=pairs if in_pairs else ())


def _from_file(path: Path) -> Profile:
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"GPU profile {path}: {error}") from None
    entries = content.get("gpu")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"GPU profile {path}: needs at least one [[gpu]] table")
    gpus = tuple(gpu for entry in entries for gpu in _from_entry(entry, str(path)))
    _count(len(gpus), str(path))
    groups = {name: _groups(content.get(name, []), name, len(gpus), str(path)) for name in ("nvlinks", "switches")}
    return Profile(gpus, groups["nvlinks"], groups["switches"])


def _groups(content: object, name: str, count: int, profile: str) -> tuple[_Group, ...]:
    match content:
        case list() if all(_is_group(group, count) for group in content):
            return tuple(map(tuple, content))
    raise ValueError(f"GPU profile {profile}: {name} must be lists of GPUs' numbers, 0 to {count - 1}")


def _is_group(group: object, count: int) -> bool:
    return isinstance(group, list) and all(type(place) is int and 0 <= place < count for place in group)


def _from_entry(entry: dict[str, Any], profile: str) -> tuple[FakeGpu, ...]:
    match entry:
        case {"model": str(model), "mem_mib": int(mem_mib)} if mem_mib > 0:
            gpu = FakeGpu(model, mem_mib * MIB)
        case {"model": str(model)} if "mem_mib" not in entry:
            gpu = _known_gpu(model, profile)
        case _:
            raise ValueError(f"GPU profile {profile}: a [[gpu]] needs a model and, if given, a positive mem_mib")
    match entry.get("numa_node"):
        case None:
            pass
        case int(node) if node >= 0:
            gpu = replace(gpu, numa_node=node)
        case other:
            raise ValueError(f"GPU profile {profile}: numa_node must be a number from 0, not {other!r}")
    count = entry.get("count", 1)
    if not isinstance(count, int):
        raise ValueError(f"GPU profile {profile}: count must be a whole number, not {count!r}")
    return (_cut(gpu, str(entry.get("mig", "")), profile),) * _count(count, profile)


def _known_gpu(model: str, profile: str) -> FakeGpu:
    name = _BY_FOLDED_NAME.get(model.casefold())
    if name is None:
        raise ValueError(f"unknown GPU model {model!r} in profile {profile!r}; {_known()}")
    mem_mib, compute_capability = _MODELS[name]
    return FakeGpu(name, mem_mib * MIB, compute_capability)


def _cut(gpu: FakeGpu, slices: str, profile: str) -> FakeGpu:
    """Cut the GPU into MIG slices such as `3g.20gb,1g.5gb*2`. Raises ValueError if it cannot be cut so."""
    if not slices:
        return gpu
    if gpu.model not in _CAN_BE_CUT:
        raise ValueError(f"GPU profile {profile!r}: {gpu.model} has no MIG; {', '.join(_CAN_BE_CUT)} have")
    parts: list[FakeSlice] = []
    compute = 0
    for part in slices.split(","):
        match = re.fullmatch(r"([1-7])g\.(\d{1,3})gb(?:\*([1-7]))?", part, re.IGNORECASE)
        if match is None:
            raise ValueError(f"GPU profile {profile!r}: {part!r} is no MIG slice such as 1g.5gb or 1g.5gb*7")
        mem_bytes = int(int(match[2]) * 1024 * _OF_SLICE) * MIB
        many = int(match[3] or 1)
        parts += [FakeSlice(f"{gpu.model} MIG {match[1]}g.{match[2]}gb", mem_bytes)] * many
        compute += int(match[1]) * many
    if compute > _MOST_SLICES or sum(part.mem_bytes for part in parts) > gpu.mem_bytes:
        raise ValueError(f"GPU profile {profile!r}: {slices} is more than one {gpu.model} has")
    return replace(gpu, slices=tuple(parts))


def _count(count: int, profile: str) -> int:
    if not 1 <= count <= MAX_GPUS:
        raise ValueError(f"GPU profile {profile!r}: count must be 1 to {MAX_GPUS}, not {count}")
    return count


def _known() -> str:
    return f"known models: {', '.join(KNOWN_MODELS)}; machines: {', '.join(_MACHINES)}"
