"""Shares of GPUs among jobs that run already (seed 001, §IV-A)."""

from collections import Counter

from tests.core.lab import DONE, GIB, Lab, gpus_of


def test_a_job_moves_only_to_a_gpu_with_at_least_two_fewer() -> None:
    lab = Lab("malleable-equipartition", "a", 2, min_work_s="0", resize_after_s="0", gain_restarts="0")
    jobs = []
    for _ in range(6):
        jobs.append(lab.submit("1/4", 1, gpu_mem_bytes=8 * GIB))
        lab.settle()
    fuller = [job for job in jobs if gpus_of(job) == gpus_of(jobs[0])]
    stay = [job for job in jobs if job not in fuller]
    places = [gpus_of(job) for job in stay]

    lab.end(fuller.pop(), DONE)
    lab.settle()
    assert [gpus_of(job) for job in stay] == places
    lab.end(fuller.pop(), DONE)
    lab.settle()
    left = Counter(gpu for job in [*stay, *fuller] for gpu in gpus_of(job))
    assert sorted(left.values()) == [2, 2]
