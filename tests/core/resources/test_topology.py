"""Which GPUs of a node a job gets where it makes a difference how they reach each other."""

from dataclasses import replace
from itertools import combinations

import pytest
from ebbtide_core import events as e
from ebbtide_core.events import NodeRegistered
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ForeignProcess, GpuFacts, GpuId, GpuLink, JobId, JobState, LinkKind, NodeId
from ebbtide_core.resources.topology import Topology, _largest_clique, topology_of

from tests.core.lab import DONE, GIB, Lab, gpus_of, registration

PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]
SWITCHES = [(0, 1, 2, 3), (4, 5, 6, 7)]
CUBE = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)]
CUBE += [(0, 4), (1, 5), (2, 6), (3, 7)]
"""The hybrid cube mesh of the first DGX."""


def linked(
    count: int, nvlinks=(), switches=(), numa=None, parents=None, name: str = "a", mem: dict | None = None
) -> NodeRegistered:
    """A node whose GPUs are linked as said; ``numa`` has the NUMA node of each."""

    def kind(one: int, other: int) -> LinkKind | None:
        if (one, other) in nvlinks or (other, one) in nvlinks:
            return LinkKind.NVLINK
        return LinkKind.SWITCH if any({one, other} <= {*switch} for switch in switches) else None

    facts = [
        GpuFacts(
            GpuId(f"{name}{i}"), i, "A100", (mem or {}).get(i, 40 * GIB),
            numa_node=numa[i] if numa else None,
            parent=GpuId(parents[i]) if parents and parents[i] else None,
            links=tuple(GpuLink(GpuId(f"{name}{j}"), k) for j in range(count) if j != i and (k := kind(i, j))),
        )
        for i in range(count)
    ]  # fmt: skip
    return replace(registration(name, count), gpus=tuple(facts))


def lab_of(*nodes: NodeRegistered, policy: str = "fifo") -> Lab:
    lab = Lab(policy, nodes="")
    for node in nodes:
        lab.tell(node)
    return lab


def topology(*args, **kwargs) -> Topology:
    found = topology_of(linked(*args, **kwargs).gpus)
    assert found is not None
    return found


def choose(found: Topology, count: int, free: str) -> str:
    ids = [GpuId(f"a{digit}") for digit in free]
    return "".join(sorted(gpu[1] for gpu in found.choose(ids, count, ids)))


def test_a_job_on_two_gpus_gets_an_nvlink_pair() -> None:
    lab = lab_of(linked(4, [(0, 3), (1, 2)]))
    assert gpus_of(lab.submit(2)) == {"a0", "a3"}
    assert gpus_of(lab.submit(2)) == {"a1", "a2"}


def test_a_job_on_one_gpu_does_not_split_a_pair_if_another_gpu_will_do() -> None:
    lab = lab_of(linked(3, [(0, 1)]))
    assert [gpus_of(lab.submit(1)) for _ in range(3)] == [{"a2"}, {"a0"}, {"a1"}]


@pytest.mark.parametrize(
    ("count", "free", "chosen"),
    [
        pytest.param(2, "01234567", "01", id="a pair"),
        pytest.param(2, "1234567", "23", id="a pair that is whole"),
        pytest.param(4, "01234567", "0123", id="two pairs on one switch"),
        pytest.param(4, "1234567", "4567", id="two pairs rather than one and a half"),
        pytest.param(3, "01234567", "012", id="a pair and one on its switch"),
        pytest.param(3, "0124567", "012", id="one that is alone already rather than half of a pair"),
        pytest.param(2, "0246", "02", id="no pair is whole: on one switch"),
        pytest.param(2, "04", "04", id="nothing else is left"),
        pytest.param(1, "0123456", "6", id="the one whose partner is taken"),
    ],
)
def test_sets_go_together_as_well_as_possible(count: int, free: str, chosen: str) -> None:
    assert choose(topology(8, PAIRS, SWITCHES), count, free) == chosen


def test_without_links_jobs_stay_on_one_numa_node() -> None:
    found = topology(4, numa=[0, 1, 0, 1])
    assert choose(found, 2, "0123") == "02"
    assert choose(found, 2, "123") == "13"


def test_of_a_cube_mesh_four_that_are_all_linked_are_chosen() -> None:
    found = topology(8, CUBE)
    assert choose(found, 4, "01234567") == "0123"
    assert choose(found, 4, "0124567") == "4567"
    assert choose(found, 2, "04") == "04"


def test_where_all_gpus_are_alike_nothing_has_to_be_chosen() -> None:
    everything = [*combinations(range(8), 2)]
    assert topology_of(registration("a", 8).gpus) is None
    assert topology_of(linked(8, everything, numa=[0] * 4 + [1] * 4).gpus) is None
    assert topology_of(linked(4, numa=[0] * 4).gpus) is None


def test_of_many_gpus_a_good_set_is_found_without_trying_all() -> None:
    found = topology(16, [(i, i + 8) for i in range(8)])
    ids = [GpuId(f"a{i}") for i in range(16)]
    chosen = found.choose(ids, 6, ids)
    assert sum(GpuId(f"a{i}") in chosen and GpuId(f"a{i + 8}") in chosen for i in range(8)) == 3


def test_a_choice_is_made_once() -> None:
    found = topology(8, PAIRS)
    choose(found, 4, "01234567")
    known = len(found._chosen)
    choose(found, 4, "01234567")
    assert (known, len(found._chosen)) == (1, 1)


def test_the_largest_clique_is_that_of_a_search_over_all_sets() -> None:
    found = topology(8, CUBE)
    for members in range(256):
        bits = [i for i in range(8) if members & 1 << i]
        largest = max(
            len(some)
            for size in range(len(bits) + 1)
            for some in combinations(bits, size)
            if all((a, b) in CUBE or (b, a) in CUBE for a, b in combinations(some, 2))
        )
        assert _largest_clique(found.reach[0], members) == largest


def test_one_that_grows_takes_what_goes_with_what_it_has() -> None:
    lab = Lab("fifo", nodes="", resize_after_s="1")
    lab.tell(linked(4, [(0, 3), (1, 2)]))
    others = [lab.running(1), lab.running(2)]
    assert [gpus_of(job) for job in others] == [{"a0"}, {"a1", "a2"}]
    growing = lab.running(1, 2)
    assert gpus_of(growing) == {"a3"}
    for job in others:
        lab.end(job, DONE)
    lab.wait(10)
    lab.settle()
    assert gpus_of(growing) == {"a0", "a3"}


def test_gpus_that_nobody_holds_any_more_come_before_linked_ones_that_are_being_freed() -> None:
    lab = Lab(nodes="")
    lab.tell(linked(4, [(0, 1), (2, 3)]))
    first, second = lab.running(1), lab.running(1)
    assert gpus_of(first) | gpus_of(second) == {"a0", "a1"}
    lab.tell(e.CancelRequested(first.id))
    assert gpus_of(lab.submit(2)) == {"a2", "a3"}


def test_mig_slices_are_for_jobs_on_one_gpu() -> None:
    sliced = linked(4, parents=["p", "p", "", ""], mem={0: 10 * GIB, 1: 10 * GIB})
    lab = lab_of(sliced)
    assert gpus_of(lab.submit(2)) == {"a2", "a3"}
    assert [gpus_of(lab.submit(1)) for _ in range(2)] == [{"a0"}, {"a1"}]
    assert lab.submit(2).state is JobState.PENDING
    spec = JobSpec(command=("x",), workdir="/", gpus_min=3 * WHOLE, gpus_max=3 * WHOLE)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("9"), spec, "ann"))
    assert refusal is not None
    assert refusal.message == "--gpus: 3 is more than the 2 of the largest node"


def test_a_job_that_names_its_memory_gets_a_slice_only_if_that_is_large_enough() -> None:
    lab = lab_of(linked(3, parents=["p", "p", ""], mem={0: 10 * GIB, 1: 20 * GIB}))
    assert gpus_of(lab.submit(1, gpu_mem_bytes=15 * GIB)) == {"a1"}
    assert gpus_of(lab.submit(1, gpu_mem_bytes=15 * GIB)) == {"a2"}
    assert lab.submit(1, gpu_mem_bytes=15 * GIB).state is JobState.PENDING


def test_jobs_on_several_nodes_get_no_slices_either() -> None:
    one, other = linked(3, parents=["p", "p", ""]), linked(2, name="b")
    lab = lab_of(replace(one, checkpoint_root_id="r"), replace(other, checkpoint_root_id="r"))
    assert gpus_of(lab.submit(3, max_nodes=2)) == {"a2", "b0", "b1"}
    assert lab.submit(2, nodes=2).state is JobState.PENDING


def test_a_job_on_a_slice_does_not_grow_by_other_gpus() -> None:
    lab = lab_of(linked(3, parents=["p", "", ""]))
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a1"), (ForeignProcess(1, "x", "y"),)))
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a2"), (ForeignProcess(1, "x", "y"),)))
    growing = lab.running(1, 3)
    assert gpus_of(growing) == {"a0"}
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a1"), ()))
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a2"), ()))
    lab.wait(100)
    lab.settle()
    assert gpus_of(growing) == {"a1", "a2"}


def test_more_gpus_of_that_memory_than_one_node_has_are_refused_at_submit() -> None:
    lab = lab_of(linked(4, mem={0: 80 * GIB}), linked(2, mem={0: 80 * GIB}, name="b"))
    spec = JobSpec(command=("x",), workdir="/", gpus_min=2 * WHOLE, gpus_max=2 * WHOLE, gpu_mem_bytes=60 * GIB)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("1"), spec, "ann"))
    assert refusal is not None
    assert refusal.message == "--gpu-mem: 2 GPUs with 60 GiB each are more than the 1 that one node has"
    fitting = replace(spec, gpu_mem_bytes=40 * GIB)
    assert lab.cluster.refusal(e.JobSubmitted(JobId("1"), fitting, "ann")) is None
