"""What is more than there is is told in GiB."""

import pytest
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.sizes import compared
from ebbtide_core.resources.infeasible import infeasible_refusal

from tests.core.lab import GIB, Lab


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"mem_bytes": 10**13}, "--mem: 9313 GiB is more than any node's 256 GiB"),
        ({"gpu_mem_bytes": 41 * GIB}, "--gpu-mem: 41 GiB is more than any GPU's 40 GiB"),
        (
            {"needs": Needs(gpu_total_mem_bytes=80 * GIB)},
            "--gpu-total-mem 80 GiB: the nodes that would do have GPUs with 40 GiB at most",
        ),
    ],
)
def test_a_refusal_names_sizes_in_gib(spec, told) -> None:
    lab = Lab("fifo")
    job = lab.submit(1, hold=True, **spec)
    refusal = infeasible_refusal(lab.cluster.state.pools[DEFAULT_POOL], job.spec)
    assert refusal.message == told


def test_two_sizes_that_differ_read_differently() -> None:
    assert compared(256 * GIB + 2**20, 256 * GIB) == ("256.001 GiB", "256 GiB")
    assert compared(256 * GIB + 1, 256 * GIB) == ("256.0000000009313 GiB", "256 GiB")
