"""Decides which nodes and GPUs a job can use at all, by their labels, taints, models and memory.

`ebbtide_core.resources.placing` decides which of them are free. A job without constraints may go to every node without
a taint, and gets GPUs of one model.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ebbtide_core.model import limits
from ebbtide_core.model.choices import NodeId
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.spec_error import SpecError

if TYPE_CHECKING:
    from ebbtide_core.model.types import GpuFacts

Version = tuple[int, int]

_KEY: Final = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"[A-Za-z0-9._+-]{1,63}"
_VERSION: Final = r"([0-9]{1,3})\.([0-9]{1,3})"


@frozen
class Selector:
    """The constraint that a node's label ``key`` has one of ``values``."""

    key: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}={'|'.join(self.values)}"


@frozen(kw_only=True)
class Needs:
    """The constraints of a job on its nodes and GPUs; all of them have to be met.

    ``select``: labels of the node. ``tolerate``: taints that it may have. ``on``: the node is one of these, if any are
    named; ``exclude``: it is none of those. ``gpu_types``: the GPU's model has the words of one of these (see
    `is_of_type`). ``compute_capability``: the least that a GPU has, such as ``8.0``; empty: any.
    ``gpu_total_mem_bytes``: the least memory of each GPU, whatever the job gets of it. ``mixed_gpus``: the GPUs may be
    of several models. ``require_paths``: absolute paths that exist on the node; the node checks this.
    """

    select: tuple[Selector, ...] = ()
    tolerate: tuple[str, ...] = ()
    on: tuple[NodeId, ...] = ()
    exclude: tuple[NodeId, ...] = ()
    gpu_types: tuple[str, ...] = ()
    compute_capability: str = ""
    gpu_total_mem_bytes: int = 0
    mixed_gpus: bool = False
    require_paths: tuple[str, ...] = ()

    @property
    def of_gpus(self) -> bool:
        """Whether some constraint is about GPUs."""
        return bool(self.gpu_types or self.compute_capability or self.gpu_total_mem_bytes)


NO_NEEDS: Final = Needs()


def why_not(needs: Needs, node: NodeId, labels: Mapping[str, str], taints: tuple[str, ...]) -> str:
    """Return why a job cannot use a node, whatever its GPUs, in words that name the option; empty if it can."""
    if needs.on and node not in needs.on:
        return f"not among --on {', '.join(needs.on)}"
    if node in needs.exclude:
        return "named by --exclude"
    for taint in taints:
        if taint not in needs.tolerate:
            return f"tainted {taint}, and no --tolerate {taint}"
    for wanted in needs.select:
        if (has := labels.get(wanted.key)) not in wanted.values:
            return f"{wanted.key}={has}, not --select {wanted}" if has else f"no label {wanted.key} (--select {wanted})"
    return ""


def as_options(needs: Needs) -> list[str]:
    """Return the constraints as the options of ``ebb submit`` that ask for them."""
    return [
        *(f"--select {wanted}" for wanted in needs.select),
        *(f"--tolerate {taint}" for taint in needs.tolerate),
        *(f"--on {node}" for node in needs.on),
        *(f"--exclude {node}" for node in needs.exclude),
        *(f"--gpu-type {model}" for model in needs.gpu_types),
        *([f"--compute-capability {needs.compute_capability}"] if needs.compute_capability else ()),
        *([f"--gpu-total-mem {needs.gpu_total_mem_bytes / 2**30:g}GiB"] if needs.gpu_total_mem_bytes else ()),
        *(["--mixed-gpus"] if needs.mixed_gpus else ()),
        *(f"--require-path {path}" for path in needs.require_paths),
    ]


def suits(needs: Needs, gpu: "GpuFacts") -> bool:
    """Return whether the kind of ``gpu`` meets the constraints."""
    return not why_no_gpu(needs, gpu)


def why_no_gpu(needs: Needs, gpu: "GpuFacts") -> str:
    """Return the first option that keeps a job from ``gpu``; empty if none does."""
    if needs.gpu_types and not any(is_of_type(gpu.model, wanted) for wanted in needs.gpu_types):
        return "--gpu-type"
    if needs.compute_capability and _version(gpu.compute_capability) < _version(needs.compute_capability):
        return "--compute-capability"
    if gpu.mem_bytes < needs.gpu_total_mem_bytes:
        return "--gpu-total-mem"
    return ""


@lru_cache(maxsize=1024)
def is_of_type(model: str, wanted: str) -> bool:
    """Return whether ``wanted`` is a row of words of ``model``, ignoring case: ``a100``, ``rtx 4090``, ``RTX4090``.

    Words are runs of letters and digits: ``NVIDIA A100-SXM4-40GB`` has ``a100`` and ``a100-sxm4``, but not ``a10``.
    """
    words, looked_for = _words(model), "".join(_words(wanted))
    runs = ("".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1))
    return bool(looked_for) and looked_for in runs


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _version(text: str) -> Version:
    """Parse a compute capability; return (0, 0) if it is not known."""
    match = re.fullmatch(_VERSION, text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# --- checks of input ---


def check_needs(needs: Needs, gpus_max: int) -> None:
    """Raise `SpecError` for the first fault of ``needs``, for a job with ``gpus_max`` parts of GPUs at most."""
    for field in ("select", "tolerate", "on", "exclude", "gpu_types", "require_paths"):
        if len(getattr(needs, field)) > limits.MAX_NEEDS:
            raise SpecError(_option(field), f"is given more than {limits.MAX_NEEDS} times")
    for wanted in needs.select:
        check_label("--select", wanted.key, *wanted.values)
    for taint in needs.tolerate:
        check_taint("--tolerate", taint)
    for option, nodes in (("--on", needs.on), ("--exclude", needs.exclude)):
        for node in nodes:
            _check_name(option, node)
    for model in needs.gpu_types:
        if len(model) > limits.MAX_NAME_LENGTH or not _words(model):
            raise SpecError("--gpu-type", f"{model[:40]!r} is not part of a model name such as a100")
    _check_gpu_needs(needs, gpus_max)
    for path in needs.require_paths:
        if not path.startswith("/") or len(path.encode(errors="replace")) > limits.MAX_PATH_BYTES or "\0" in path:
            raise SpecError("--require-path", f"{path[:40]!r} is not an absolute path")


def _check_gpu_needs(needs: Needs, gpus_max: int) -> None:
    if needs.compute_capability and not re.fullmatch(_VERSION, needs.compute_capability):
        raise SpecError("--compute-capability", f"{needs.compute_capability[:40]!r} is not of the form 8.0")
    if not 0 <= needs.gpu_total_mem_bytes <= limits.MAX_MEM_BYTES:
        raise SpecError("--gpu-total-mem", f"is not between 0 and {limits.MAX_MEM_BYTES} bytes")
    if gpus_max:
        return
    for field in ("gpu_types", "compute_capability", "gpu_total_mem_bytes", "mixed_gpus"):
        if getattr(needs, field):
            raise SpecError(_option(field), "the job asks for no GPU")


def check_marks(labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
    """Raise `SpecError` unless a node may have these labels and taints."""
    for option, marks in (("--label", labels), ("--taint", taints)):
        if len(marks) > limits.MAX_NEEDS:
            raise SpecError(option, f"a node has at most {limits.MAX_NEEDS}")
    for key, value in labels.items():
        check_label("--label", key, value)
    for taint in taints:
        check_taint("--taint", taint)


def check_label(field: str, key: str, *values: str) -> None:
    """Raise `SpecError` unless a node's label may have this key and these values."""
    if not re.fullmatch(_KEY, key):
        raise SpecError(field, f"{key[:40]!r} is not a label: up to 63 letters, digits and . _ / - within")
    for value in values or ("",):
        if not re.fullmatch(_VALUE, value):
            raise SpecError(field, f"{value[:40]!r} is not a value of {key}: up to 63 letters, digits and . _ + -")


def check_taint(field: str, taint: str) -> None:
    """Raise `SpecError` unless a node's taint may have this name."""
    if not re.fullmatch(_KEY, taint):
        raise SpecError(field, f"{taint[:40]!r} is not a taint: up to 63 letters, digits and . _ / - within")


def _check_name(field: str, node: str) -> None:
    if not node or len(node) > limits.MAX_NODE_NAME_LENGTH or not node.isprintable():
        raise SpecError(field, f"{node[:40]!r} is not the name of a node")


def _option(field: str) -> str:
    names = {"gpu_types": "--gpu-type", "gpu_total_mem_bytes": "--gpu-total-mem", "require_paths": "--require-path"}
    return names.get(field, f"--{field.replace('_', '-')}")
