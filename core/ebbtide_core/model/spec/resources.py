"""The GPUs, CPUs, memory and nodes that a job asks for."""

from ebbtide_core.model import limits
from ebbtide_core.model.choices import WHOLE, gpus
from ebbtide_core.model.constraints import NO_NEEDS, Needs, check_needs
from ebbtide_core.model.frozen import part
from ebbtide_core.model.spec_error import SpecError, check_number


@part
class ResourceSpec:
    """What a job needs in order to run. GPUs are counted in parts; `WHOLE` is one GPU."""

    __slots__ = ()

    gpus_min: int = WHOLE
    """The least parts of GPUs that it runs on."""
    gpus_max: int = WHOLE
    """The most parts of GPUs that it can use; equal to ``gpus_min`` for a rigid job."""
    gpu_mem_bytes: int = 0
    """Memory of each of its GPUs; 0: its share of that GPU's memory."""
    cpus: float = 0.0
    """CPUs on each node."""
    mem_bytes: int = 0
    """Host memory on each node."""
    nodes: int = 1
    """Above 1, it always has exactly so many nodes, and equally many GPUs of each."""
    max_nodes: int = 1
    """With ``nodes`` 1: the most nodes that a job is put on that is larger than any node."""
    spread: bool = False
    """Whether it is put on up to ``max_nodes`` nodes also when only at the time no single node has room for it."""
    needs: Needs = NO_NEEDS
    """Its constraints on nodes and their GPUs."""
    pool: str = ""
    """The pool that it goes to; empty: the default for jobs with GPUs, or without."""

    @property
    def elastic(self) -> bool:
        """Whether the job's GPU count may vary."""
        return self.gpus_max > self.gpus_min

    @property
    def most_nodes(self) -> int:
        """The number of nodes that the job has at most."""
        return max(self.nodes, self.max_nodes)


def check_resources(asked: ResourceSpec) -> None:
    """Raise `SpecError` for the first fault of what is asked for."""
    check_number("--nodes", asked.nodes, 1, limits.MAX_NODES)
    check_gpu_range(asked.gpus_min, asked.gpus_max, asked.nodes)
    check_number("--gpu-mem", asked.gpu_mem_bytes, 0, limits.MAX_MEM_BYTES)
    check_number("--cpus", asked.cpus, 0, limits.MAX_CPUS)
    check_number("--mem", asked.mem_bytes, 0, limits.MAX_MEM_BYTES)
    check_number("--nodes", asked.max_nodes, 1, limits.MAX_NODES)
    if asked.spread and asked.nodes > 1:
        raise SpecError("--nodes", f"is either {asked.nodes} exactly or {asked.max_nodes} at most, not both")
    if asked.needs is not NO_NEEDS:
        check_needs(asked.needs, asked.gpus_max)


def check_gpu_range(low: int, high: int, nodes: int = 1) -> None:
    """Raise `SpecError` unless a job may have from ``low`` to ``high`` parts of GPUs on exactly ``nodes`` nodes."""
    if low < 0 or high < low:
        raise SpecError("--gpus", f"{gpus(low)}-{gpus(high)} is not a range of GPU counts")
    if high == 0:
        return
    if low == 0:
        raise SpecError("--gpus", "an elastic job needs more than 0 GPUs at least")
    for share in (low, high):
        _check_share(share)
    if high > limits.MAX_GPUS * WHOLE:
        raise SpecError("--gpus", f"{gpus(high)} is more than the limit of {limits.MAX_GPUS}")
    if nodes > 1 and low != high:
        raise SpecError(
            "--gpus",
            f"a job on {nodes} nodes needs one number of GPUs, not a range; with --nodes 1-{nodes} it may have one",
        )
    if high % (nodes * WHOLE) and nodes > 1:
        raise SpecError("--gpus", f"{gpus(high)} GPUs cannot be divided equally among {nodes} nodes")


def _check_share(share: int) -> None:
    if share % WHOLE == 0:
        return
    count = gpus(share)
    if count.numerator != 1 or count.denominator > 16:
        raise SpecError("--gpus", f"{count} is neither a whole number of GPUs nor 1/n of one (n at most 16)")
