"""Refuses jobs that no node could ever run, and names the option at fault."""

from collections.abc import Iterable, Sequence
from typing import Final

from ebbtide_core.model.constraints import NO_NEEDS, Needs, Selector, suits, why_not
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.sizes import compared, size_text
from ebbtide_core.model.spec.resources import ResourceSpec
from ebbtide_core.model.types import WHOLE, GpuFacts, gpus
from ebbtide_core.resources.books import Books, Node
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.resources.topology import together
from ebbtide_core.supply.supply import MOST_NODES, SUPPLY_LABEL

NAMED: Final = 6
"""Names that a refusal lists."""


def infeasible_refusal(pool: PoolState, spec: ResourceSpec, gpus_min: int | None = None) -> Refusal | None:
    """Return a refusal if no registered node of ``pool``, however idle, can run the job; without any node, it waits.

    So it does if it could run on more nodes like those that a supply has borrowed.
    """
    share = spec.gpus_min if gpus_min is None else gpus_min
    message = _why_not(pool.books, spec, share)
    if not message or _could_be_borrowed(pool.books, spec, share):
        return None
    return Refusal(RefusalKind.INVALID, message + pool.where)


def _could_be_borrowed(books: Books, spec: ResourceSpec, share: int) -> bool:
    """Return whether the job can run if each supply has as many nodes like its last one as a supply may have."""
    nodes = list(books.nodes.values())
    of_supplies = {node.facts.labels[SUPPLY_LABEL]: node for node in nodes if SUPPLY_LABEL in node.facts.labels}
    more = [*of_supplies.values()] * min(spec.most_nodes, MOST_NODES)
    return bool(more) and not _why_infeasible_cached(books, spec, share, more)


def _why_not(books: Books, spec: ResourceSpec, share: int) -> str:
    """Return in a line why no node of the pool can run the job; empty if one can, or there is no node."""
    most, message = books.most, ""
    if not most.gpus:
        return ""
    if spec.nodes > 1 and (fitting := most.nodes_with(each := share // spec.nodes)) < spec.nodes:
        what = f" with {gpus(each)} GPU{'s' if each > WHOLE else ''} each" if each else ""
        message = f"--nodes: {spec.nodes} nodes{what} are more than the {fitting} there are"
    elif share > most.gpus[0] * WHOLE and share > (count := most.gpus_of(spec.most_nodes)) * WHOLE:
        where = "the largest node" if spec.most_nodes == 1 else f"the {spec.most_nodes} largest nodes"
        message = f"--gpus: {gpus(share)} is more than the {count} of {where}"
    elif share and spec.gpu_mem_bytes > most.gpu_mem_bytes:
        asked, largest = compared(spec.gpu_mem_bytes, most.gpu_mem_bytes)
        message = f"--gpu-mem: {asked} is more than any GPU's {largest}"
    elif spec.gpu_mem_bytes and share > (count := _with_memory(books, spec)) * WHOLE:
        large = f"{gpus(share)} GPUs with {size_text(spec.gpu_mem_bytes)} each"
        where = "that one node has" if spec.most_nodes == 1 else f"of {spec.most_nodes} nodes"
        message = f"--gpu-mem: {large} are more than the {count} {where}"
    elif spec.cpus > most.cpus:
        message = f"--cpus: {spec.cpus:g} is more than the {most.cpus:g} of the largest node"
    elif spec.mem_bytes > most.mem_bytes:
        asked, largest = compared(spec.mem_bytes, most.mem_bytes)
        message = f"--mem: {asked} is more than any node's {largest}"
    elif not (most.alike and (spec.needs is NO_NEEDS or spec.needs == NO_NEEDS)):
        message = _why_infeasible_cached(books, spec, share)
    return message


def _why_infeasible_cached(books: Books, spec: ResourceSpec, share: int, more: Sequence[Node] = ()) -> str:
    """Do as `why_infeasible`, which looks at every GPU, but only once for each request until a node changes.

    ``more`` are nodes that there could be beside those that there are.
    """
    size = (share, spec.gpu_mem_bytes, spec.cpus, spec.mem_bytes, spec.nodes, spec.max_nodes, len(more))
    return books.cache.get((spec.needs, size), lambda: why_infeasible(spec, share, [*books.nodes.values(), *more]))


def _with_memory(books: Books, spec: ResourceSpec) -> int:
    """Return how many GPUs with at least the memory of ``spec`` one job can have on as many nodes as it may use."""
    nodes = books.nodes.values()
    counts = sorted((together(node.gpus.values(), spec.gpu_mem_bytes) for node in nodes), reverse=True)
    return sum(counts[: spec.most_nodes])


def why_infeasible(spec: ResourceSpec, share: int, nodes: Iterable[Node]) -> str:
    """Return in a line why none of ``nodes`` can ever run the job with ``share`` parts of GPUs; empty if one can."""
    left, needs = list(nodes), spec.needs
    if unknown := [id for id in needs.on if all(node.id != id for node in left)]:
        return f"--on: there is no node {unknown[0]!r}: there are {_names(node.id for node in left)}"
    left = [node for node in left if (not needs.on or node.id in needs.on) and node.id not in needs.exclude]
    if not left:
        return "--exclude: no node is left"
    for wanted in needs.select:
        if not (having := [node for node in left if node.facts.labels.get(wanted.key) in wanted.values]):
            return f"--select {wanted}: {_labelled(wanted, left)}"
        left = having
    if share:
        if message := _no_gpus(needs, left):
            return message
        left = [node for node in left if any(suits(needs, facts) for facts in node.gpus.values())]
    if not (clean := [node for node in left if not why_not(needs, node.id, node.facts.labels, node.facts.taints)]):
        tainted = _names(f"{node.id} ({', '.join(node.facts.taints)})" for node in left)
        return f"--tolerate: every node that would do has a taint that the job does not tolerate: {tainted}"
    return _too_small(spec, clean) or (_too_few(spec, share, clean) if share else "")


def _labelled(wanted: Selector, nodes: list[Node]) -> str:
    there = {value for node in nodes if (value := node.facts.labels.get(wanted.key)) is not None}
    return (
        f"the nodes that would do have {wanted.key}={_names(there)}" if there else f"no node has a label {wanted.key}"
    )


def _no_gpus(needs: Needs, nodes: list[Node]) -> str:
    """Return why no GPU of ``nodes`` meets the constraints, in words; empty if one does."""
    there = [facts for node in nodes for facts in node.gpus.values()]
    if not there:
        return "--gpus: the nodes that would do have none"
    steps = (
        (Needs(gpu_types=needs.gpu_types), f"--gpu-type {' '.join(needs.gpu_types)}", _models(there)),
        (
            Needs(compute_capability=needs.compute_capability),
            f"--compute-capability {needs.compute_capability}",
            _names({f"{facts.model} with {facts.compute_capability or '?'}" for facts in there}),
        ),
        (
            Needs(gpu_total_mem_bytes=needs.gpu_total_mem_bytes),
            f"--gpu-total-mem {size_text(needs.gpu_total_mem_bytes)}",
            f"GPUs with {size_text(max((facts.mem_bytes for facts in there), default=0))} at most",
        ),
    )
    for need, option, others in steps:
        if not (there := [facts for facts in there if suits(need, facts)]):
            return f"{option}: the nodes that would do have {others}"
    return ""


def _too_small(spec: ResourceSpec, nodes: list[Node]) -> str:
    if spec.cpus > (cpus := max(node.facts.cpus for node in nodes)):
        return f"--cpus: {spec.cpus:g} is more than the {cpus:g} of the largest node that would do"
    if spec.mem_bytes > (most := max(node.facts.mem_bytes for node in nodes)):
        asked, largest = compared(spec.mem_bytes, most)
        return f"--mem: {asked} is more than the {largest} of the largest node that would do"
    return ""


def _too_few(spec: ResourceSpec, share: int, nodes: list[Node]) -> str:
    """Return in words that ``nodes`` never have enough GPUs that the job can use together; empty if they do."""
    able = [node for node in nodes if node.facts.cpus >= spec.cpus and node.facts.mem_bytes >= spec.mem_bytes]
    counts = _counts(spec, able)
    if spec.nodes > 1:
        each = share // spec.nodes
        fitting = max((sum(1 for count in group if count * WHOLE >= each) for group in counts), default=0)
        what = f"{spec.nodes} nodes with {gpus(each)} GPUs each"
        return "" if fitting >= spec.nodes else f"--nodes: {what}{_kind(spec)} are more than the {fitting} there are"
    most = max((sum(sorted(group)[-spec.most_nodes :]) for group in counts), default=0)
    if share <= most * WHOLE:
        return ""
    where = "one node has that would do" if spec.most_nodes == 1 else f"{spec.most_nodes} nodes have that would do"
    return f"--gpus: {gpus(share)}{_kind(spec)} are more than the {most} that {where}"


def _kind(spec: ResourceSpec) -> str:
    return "" if spec.needs.mixed_gpus or spec.gpus_min <= WHOLE else " of one model (--mixed-gpus takes several)"


def _counts(spec: ResourceSpec, nodes: list[Node]) -> list[list[int]]:
    """Return how many GPUs the job could have of each of ``nodes``, grouped by model unless it takes mixed models."""
    found: dict[str, dict[int, list[GpuFacts]]] = {}
    for number, node in enumerate(nodes):  # one that could be borrowed again is there several times
        for facts in node.gpus.values():
            if suits(spec.needs, facts) and facts.mem_bytes >= spec.gpu_mem_bytes:
                kind = "" if spec.needs.mixed_gpus else facts.model
                found.setdefault(kind, {}).setdefault(number, []).append(facts)
    return [[together(each) for each in by_node.values()] for by_node in found.values()]


def _models(there: Iterable[GpuFacts]) -> str:
    return _names({facts.model for facts in there})


def _names(found: Iterable[str]) -> str:
    names = sorted(found)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
