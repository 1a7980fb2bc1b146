"""Decides which nodes and GPUs a job may use at all, regardless of what uses them now.

All GPUs of one job are of one model unless the job allows several, because ranks on different GPUs wait for the
slowest. So a job may choose among *domains*: a domain is a set of nodes and GPUs that the job may have at the same
time. Domains are computed once for all jobs with the same constraints, until a node comes, goes or changes. They are
not computed at all for a job without constraints in a pool without taints and with GPUs of one model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import Needs, suits, why_no_gpu, why_not
from ebbtide_core.model.types import WHOLE, Allocation, GpuFacts, GpuId, GpuSlice, NodeAllocation, NodeId
from ebbtide_core.resources.books import Books, Node
from ebbtide_core.resources.checkpoint_location import may_copy, nodes_reading_checkpoint, reads_checkpoint
from ebbtide_core.resources.topology import together

NODES_NAMED: Final = 4
"""Nodes that a reason lists."""


class Span(Enum):
    """The extent within which a job's GPUs must be alike: one GPU (no condition), one node, or all of its nodes."""

    GPU = auto()
    NODE = auto()
    NODES = auto()


@dataclass(slots=True)
class Domain:
    """Nodes that a job may have at the same time; ``barred`` has each node's GPUs that do not belong to the domain."""

    nodes: dict[NodeId, Node]
    barred: dict[NodeId, frozenset[GpuId]]

    def offered(self, node: Node) -> Iterable[GpuSlice]:
        """Return the GPUs of ``node`` that are on offer to the job, in use or not."""
        barred = self.barred.get(node.id, frozenset())
        return (piece for gpu, piece in node.slices.items() if gpu not in barred)

    def count(self, node: Node) -> int:
        """Return how many GPUs of ``node`` are on offer to the job."""
        return len(node.slices) if node.id not in self.barred else sum(1 for _ in self.offered(node))

    def together(self, node: Node) -> int:
        """Return how many GPUs of ``node`` one job could have, including unhealthy ones."""
        barred = self.barred.get(node.id)
        if barred is None:
            return node.together
        return together(facts for facts in node.gpus.values() if facts.gpu not in barred)


def domains(job: Job, books: Books, share: int) -> tuple[Domain, ...] | None:
    """Return the domains where ``job`` may have ``share`` parts of GPUs; None: any GPUs of any usable nodes."""
    if not (job.eligibility.constrained or books.heterogeneous):
        return None
    span = _span(job, books, share)
    if (
        not job.eligibility.constrained
        and not books.tainted
        and not books.loans.too_short(job)
        and (span is Span.GPU or (span is Span.NODE and not books.mixed))
    ):
        return None
    return _known(job, books, span)


def open_to(job: Job, books: Books, share: int) -> tuple[Domain, ...]:
    """Do as `domains`, but return one domain of all usable nodes instead of None."""
    found = domains(job, books, share)
    return (Domain(books.usable, {}),) if found is None else found


def domain_of(job: Job, allocation: Allocation, books: Books) -> Domain | None:
    """Return the domain where ``job`` may have more GPUs besides ``allocation``; None if there is none."""
    first = allocation.nodes[0]
    span = Span.GPU if job.spec.needs.mixed_gpus else Span.NODES
    for domain in _known(job, books, span):
        if first.gpus[0].gpu in domain.barred.get(first.node, ()):
            continue
        if all(id in domain.nodes for id in allocation.node_ids):
            return domain
    return None


def largest(job: Job, books: Books) -> int:
    """Return the most GPUs that ``job`` could have on one usable node."""
    if not (job.eligibility.constrained or books.heterogeneous) or (
        not job.eligibility.constrained and not books.tainted and not books.mixed and not books.loans.too_short(job)
    ):
        return books.largest
    found = _known(job, books, Span.NODE)
    together = (domain.together(node) for domain in found for node in domain.nodes.values())
    return books.cache.get(("largest", *_limits(job, books)), lambda: max(together, default=0))


def may_use(job: Job, books: Books, node: NodeId, gpu: GpuId | None = None) -> bool:
    """Return whether ``job`` may use ``node``, which must be usable, and that GPU of it, if one is given."""
    found = domains(job, books, 0)
    if found is None:
        return True
    [domain] = found
    return node in domain.nodes and gpu not in domain.barred.get(node, ())


def allows(job: Job, books: Books, allocation: Allocation) -> bool:
    """Return whether ``job`` may have ``allocation``; this is checked for every placement that a policy plans."""
    if not (job.eligibility.constrained or books.heterogeneous) or job.pinned_allocation is not None:
        return True
    if not all(_allows(job, books, piece) for piece in allocation.nodes):
        return False
    return job.spec.needs.mixed_gpus or len(_models(books, allocation)) <= 1


def _allows(job: Job, books: Books, piece: NodeAllocation) -> bool:
    if not piece.gpus:
        return may_use(job, books, piece.node)
    return all(may_use(job, books, piece.node, gpu.gpu) for gpu in piece.gpus)


def _models(books: Books, allocation: Allocation) -> set[str]:
    """Return the models of the allocation's GPUs, except for GPUs that are gone."""
    found = [books.nodes[piece.node].gpus.get(gpu.gpu) for piece in allocation.nodes for gpu in piece.gpus]
    return {facts.model for facts in found if facts is not None}


# --- the domains ---


def _span(job: Job, books: Books, share: int) -> Span:
    spec = job.spec
    if share <= WHOLE or spec.needs.mixed_gpus:
        return Span.GPU
    if spec.nodes > 1 or spec.spread or (spec.max_nodes > 1 and share > largest(job, books) * WHOLE):
        return Span.NODES
    return Span.NODE


def _known(job: Job, books: Books, span: Span) -> tuple[Domain, ...]:
    """Return the domains for the job's constraints, from the cache in the books if they are there."""
    limits = _limits(job, books)
    return books.cache.get((span, *limits), lambda: tuple(_work_out(job, _long_enough(books, limits[-1]), span)))


def _limits(job: Job, books: Books) -> tuple[Needs, frozenset[NodeId], frozenset[GpuId], int]:
    """Return all that limits the nodes and GPUs that ``job`` may use, with the number of nodes that end too soon."""
    return job.spec.needs, job.eligibility.excluded, job.eligibility.excluded_gpus, books.loans.too_short(job)


def _long_enough(books: Books, ending: int) -> Iterable[Node]:
    """Return the usable nodes without the ``ending`` ones that end first."""
    too_short = books.loans.first(ending)
    return [node for node in books.usable.values() if node.id not in too_short] if ending else books.usable.values()


def _work_out(job: Job, nodes: Iterable[Node], span: Span) -> Iterator[Domain]:
    able = [(node, _suited(job, node)) for node in nodes if _takes(job, node)]
    if span is Span.GPU:
        asks = job.spec.needs.of_gpus or job.eligibility.excluded_gpus
        yield _domain((node, gpus) for node, gpus in able if gpus or not asks)
        return
    by_model = [(node, _by_model(gpus)) for node, gpus in able]
    if span is Span.NODES:
        for model in sorted({model for _, models in by_model for model in models}):
            yield _domain((node, models[model]) for node, models in by_model if model in models)
        return
    # GPUs need to be alike only on each node, so the first domain has the commonest model of every node.
    most_first = [(node, sorted(models.values(), key=len, reverse=True)) for node, models in by_model]
    for rank in range(max((len(groups) for _, groups in most_first), default=0)):
        yield _domain((node, groups[rank]) for node, groups in most_first if rank < len(groups))


def _domain(chosen: Iterable[tuple[Node, list[GpuFacts]]]) -> Domain:
    nodes, barred = dict[NodeId, Node](), dict[NodeId, frozenset[GpuId]]()
    for node, gpus in chosen:
        nodes[node.id] = node
        if len(gpus) < len(node.gpus):
            barred[node.id] = frozenset(node.gpus) - {facts.gpu for facts in gpus}
    return Domain(nodes, barred)


def _takes(job: Job, node: Node) -> bool:
    facts = node.facts
    return node.id not in job.eligibility.excluded and not why_not(job.spec.needs, node.id, facts.labels, facts.taints)


def _suited(job: Job, node: Node) -> list[GpuFacts]:
    needs = job.spec.needs
    left = [facts for facts in node.gpus.values() if facts.gpu not in job.eligibility.excluded_gpus]
    return [facts for facts in left if not needs.of_gpus or suits(needs, facts)]


def _by_model(gpus: Iterable[GpuFacts]) -> dict[str, list[GpuFacts]]:
    found: dict[str, list[GpuFacts]] = {}
    for facts in gpus:
        found.setdefault(facts.model, []).append(facts)
    return found


# --- whether a job would fit if no other job ran ---


def could_spread(job: Job, books: Books) -> bool:
    """Return whether ``job`` would fit on as many nodes as it asks for, with one checkpoint root, if they were idle."""
    each = job.gpus_min // job.spec.nodes // WHOLE
    for domain in open_to(job, books, job.gpus_min):
        roots = [
            node.facts.checkpoint_root_id
            for node in domain.nodes.values()
            if domain.count(node) >= each and reads_checkpoint(job, node, books)
        ]
        if any(roots.count(root) >= job.spec.nodes for root in set(roots)):
            return True
    return False


def could_combine(job: Job, books: Books) -> bool:
    """Return whether as many nodes as ``job`` may have, with one checkpoint root, would have enough GPUs if idle."""
    most = 0
    for domain in open_to(job, books, job.gpus_min):
        counts: dict[str, list[int]] = {}
        for node in domain.nodes.values():
            if reads_checkpoint(job, node, books):
                counts.setdefault(node.facts.checkpoint_root_id, []).append(domain.count(node))
        most = max([most, *(sum(sorted(group)[-job.spec.max_nodes :]) for group in counts.values())])
    return job.gpus_min <= most * WHOLE


def could_gather(job: Job, books: Books) -> bool:
    """Return whether as many nodes as ``job`` may have would have enough GPUs for it if idle."""
    for domain in open_to(job, books, job.gpus_min):
        counts = sorted(map(domain.count, domain.nodes.values()), reverse=True)
        if job.gpus_min <= sum(counts[: job.spec.max_nodes]) * WHOLE:
            return True
    return False


def could_run(job: Job, books: Books) -> bool:
    """Return whether ``job`` would fit on the nodes in service if they were idle."""
    spec, root = job.spec, job.saved.root_id
    if spec.nodes > 1:
        needs = (job.gpus_min, spec.nodes, root, root in books.roots and may_copy(job), *_limits(job, books))
        return books.cache.get(("spread", *needs), lambda: could_spread(job, books))
    if job.gpus_min > largest(job, books) * WHOLE:
        asks = (job.gpus_min, spec.max_nodes, spec.spread, *_limits(job, books))
        if not books.cache.get(("gathered", *asks), lambda: could_gather(job, books)):
            return False
    if not job.gpus_min and not open_to(job, books, 0)[0].nodes:
        return False
    return not root or bool(nodes_reading_checkpoint(job, books))


def holds_up(job: Job, books: Books) -> bool:
    """Return whether the jobs behind ``job``, for which there is no room, wait for it.

    They do not wait if ``job`` has a pinned allocation, or if it would not fit even on idle nodes in service.
    """
    if job.pinned_allocation is not None:
        return False
    if not (job.eligibility.constrained or books.heterogeneous or books.drained):
        away = len(books.usable) < len(books.nodes)  # because such nodes may come back
        if away or (job.spec.nodes == 1 and job.gpus_min <= books.largest * WHOLE):
            return True
    return could_run(job, books)


# --- in words ---


def why_not_here(job: Job, books: Books, node: Node) -> str:
    """Return why ``job`` may not use ``node``, in words; empty if it may use the node and at least one GPU of it."""
    needs = job.spec.needs
    if node.id in job.eligibility.excluded:
        return job.eligibility.excluded_because.get(node.id, "excluded")
    if why := why_not(needs, node.id, node.facts.labels, node.facts.taints):
        return why
    if job.eligibility.excluded_gpus and node.gpus and node.gpus.keys() <= job.eligibility.excluded_gpus:
        return "the job's log showed a fault of its GPUs"
    if job.gpus_min and node.gpus and not _suited(job, node):
        return f"no GPU meets {why_no_gpu(needs, next(iter(node.gpus.values())))}"
    return books.loans.obstacle(job, node.id)


def obstacle(job: Job, books: Books) -> str:
    """Return what besides other jobs keeps a waiting job with constraints from starting, in words; empty if nothing."""
    found = domains(job, books, 0)
    if found is not None and not found[0].nodes:
        nodes = islice(books.usable.values(), NODES_NAMED)
        named = "; ".join(f"{node.id}: {why_not_here(job, books, node)}" for node in nodes)
        more = f"; and {len(books.usable) - NODES_NAMED} more" if len(books.usable) > NODES_NAMED else ""
        return f": none of the connected nodes will do ({named}{more})"
    if job.spec.most_nodes == 1 and job.gpus_min > (most := largest(job, books)) * WHOLE:
        return f" of one model on one node: those that it may use have {most} at most"
    left_out = [f"node {id} ({text})" for id, text in sorted(job.eligibility.excluded_because.items())]
    left_out += [
        f"node {id} ({books.loans.obstacle(job, id)})"
        for id in sorted(books.loans.first(min(books.loans.too_short(job), NODES_NAMED)))
    ]
    left_out += [f"GPU {id} (the job's log showed a fault)" for id in sorted(job.eligibility.excluded_gpus)]
    return f", not of {', '.join(left_out[:NODES_NAMED])}" if left_out else ""
