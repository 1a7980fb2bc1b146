"""Equipartition after any history (seed 001, §IV-A): everybody has what the paper says."""

from collections import Counter
from fractions import Fraction

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobState
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, GIB, Lab, gpus_of, registration
from tests.core.policies.equipartition import PAPER, malleable, share, shares
from tests.drawing import share_of

# --- any history ---


def reference(count: int, ranges: list[tuple[int, int]]) -> list[int]:
    """Whole GPUs for each, seat by seat, as the paper says."""
    if sum(low for low, _ in ranges) >= count:
        given, left = [], count
        for low, _ in ranges:
            given.append(low if low <= left else 0)
            left -= given[-1]
        return given
    if sum(high for _, high in ranges) <= count:
        return [high for _, high in ranges]
    dealt = [low for low, _ in ranges]
    for _ in range(count - sum(dealt)):
        dealt[max(range(len(ranges)), key=lambda k: (Fraction(ranges[k][1], dealt[k] + 1), -k))] += 1
    return dealt


def sharing(count: int, jobs: int) -> list[Fraction]:
    """The shares of ``jobs`` that need 1/4 to 1 GPU each, if they are more than GPUs, as the paper says."""
    if jobs >= 4 * count:
        return [Fraction(1, 4)] * (4 * count) + [Fraction(0)] * (jobs - 4 * count)
    each = [jobs // count + (index < jobs % count) for index in range(count)]
    return sorted(Fraction(1, n) for n in each for _ in range(n))


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "submit", "end"]), st.integers(1, 3), st.integers(0, 6)), max_size=14
)


@settings(max_examples=share_of(60), deadline=None)
@given(count=st.integers(1, 8), steps=STEPS)
def test_after_any_history_everybody_has_what_the_paper_says_and_changes_were_small(
    count: int, steps: list[Step]
) -> None:
    lab = malleable(count)
    here: list[Job] = []
    for what, low, more in steps:
        before = {job.id: gpus_of(job) for job in here}
        attempts = {job.id: len(job.attempts) for job in here}
        running = [job for job in here if job.state is JobState.RUNNING]
        if what == "submit":
            low = min(low, count)
            here.append(lab.submit(low, min(low + more, count), work_s=1e6))
        elif running:
            ending = running[more % len(running)]
            here.remove(ending)
            lab.end(ending, DONE)
        lab.settle()
        assert shares(here) == reference(count, [(job.gpus_min // WHOLE, job.gpus_max // WHOLE) for job in here])
        held = Counter(gpu for job in here for gpu in gpus_of(job))
        assert all(times == 1 for times in held.values())
        for job in here:
            was, now = before.get(job.id, set()), gpus_of(job)
            assert len(now) != len(was) or len(job.attempts) == attempts.get(job.id, len(job.attempts))
            assert not was or was <= now or now <= was


@settings(max_examples=share_of(60), deadline=None)
@given(count=st.integers(1, 4), steps=STEPS)
def test_after_any_history_gpus_are_shared_as_the_paper_says(count: int, steps: list[Step]) -> None:
    lab = malleable(count)
    here: list[Job] = []
    for what, _, index in steps * 2:
        before = {job.id: job.planned for job in here}
        attempts = {job.id: len(job.attempts) for job in here}
        running = [job for job in here if job.state is JobState.RUNNING]
        if what == "submit":
            here.append(lab.submit("1/4", 1, gpu_mem_bytes=9 * GIB, work_s=1e6))
        elif running:
            ending = running[index % len(running)]
            here.remove(ending)
            lab.end(ending, DONE)
        lab.settle()
        if len(here) <= count:
            assert shares(here) == [1] * len(here)
        else:
            assert sorted(shares(here)) == sorted(sharing(count, len(here)))
        used = Counter()
        for job in here:
            for gpu in gpus_of(job):
                used[gpu] += share(job)
            if job.id in before and job.planned == before[job.id]:
                assert len(job.attempts) == attempts[job.id]
        assert all(total <= 1 for total in used.values())


@settings(max_examples=share_of(60), deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    jobs=st.lists(
        st.tuples(st.sampled_from(["1/4", "1/2", "1", "2"]), st.integers(0, 4), st.sampled_from([0, 5, 15, 30])),
        max_size=10,
    ),
    policy=st.sampled_from(["moldable-equipartition", "malleable-equipartition"]),
)
def test_nobody_gets_too_much_or_too_little_and_no_gpu_gives_more_than_it_has(
    counts: list[int], jobs: list[tuple[str, int, int]], policy: str
) -> None:
    lab = Lab(policy, "", **(PAPER if policy.startswith("malleable") else {}))
    for name, count in zip("abc", counts, strict=False):
        lab.tell(registration(name, count, checkpoint_root_id="shared"))
    here = [
        lab.submit(low, max(Fraction(low), Fraction(more)), gpu_mem_bytes=memory * GIB, max_nodes=1 + more % 2)
        for low, more, memory in jobs
    ]
    lab.settle()
    for job in here:
        assert job.planned is None or job.planned.share in job.sizes()
    parts: Counter[str] = Counter()
    memory_used: Counter[str] = Counter()
    for job in here:
        for piece in job.planned or ():
            for gpu in piece.gpus:
                parts[gpu.gpu] += gpu.share
                memory_used[gpu.gpu] += gpu.mem_bytes
    assert all(used <= WHOLE for used in parts.values())
    assert all(used <= 40 * GIB for used in memory_used.values())
