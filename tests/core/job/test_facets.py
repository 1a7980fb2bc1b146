"""The facets of a job: those that seldom change are shared by all jobs until one of them changes."""

from ebbtide_core import events as e
from ebbtide_core.job.facets import ANYWHERE, NOTHING_MEASURED, Eligibility, Measured
from ebbtide_core.model.types import GpuId, NodeId, ProgressFacts

from tests.core.lab import Lab


def test_what_happens_to_one_job_changes_nothing_that_another_shares_with_it() -> None:
    lab = Lab(gpus=2)
    one, other = lab.running(), lab.submit()
    before = other.next, other.times, other.saved, other.measured, other.retries, other.eligibility, other.gpu_memory
    lab.cluster.handle(e.ProgressReported(one.id, 1, ProgressFacts(5, 10)), lab.now)
    lab.tell(e.NodeExcluded(one.id, one.attempts[-1].allocation.node_ids[0], "its log says 'Xid 79'"))
    assert one.measured.progress == ProgressFacts(5, 10)
    assert one.eligibility.excluded == set(one.eligibility.excluded_because)
    after = other.next, other.times, other.saved, other.measured, other.retries, other.eligibility, other.gpu_memory
    assert all(new is old for new, old in zip(after, before, strict=True))
    assert (Eligibility(), Measured()) == (ANYWHERE, NOTHING_MEASURED)


def test_a_node_and_the_reason_why_it_is_closed_come_and_go_together() -> None:
    a, b = NodeId("a"), NodeId("b")
    closed = ANYWHERE.without(a, "no path").without(b, "left out").left_out(b, 60.0).without_gpus([GpuId("c0")])
    assert (closed.excluded, closed.excluded_because) == ({a, b}, {a: "no path", b: "left out"})
    opened = closed.again_with(b)
    assert (opened.excluded, opened.excluded_because, opened.left_out_until) == ({a}, {a: "no path"}, {})
    assert (opened.constrained, opened.excluded_gpus) == (True, {"c0"})
