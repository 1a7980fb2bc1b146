"""Runs the cases of an experiment in parallel processes of this machine."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

from ebbtide_sim.experiments import Progress

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """A case of an experiment: the function to call in another process, and the label shown as progress.

    ``weight`` is how long it takes relative to the other cases.
    """

    label: str
    call: Callable[[], Any]
    weight: float = 1.0


def run_all(runs: Sequence[Run], jobs: int, progress: Progress) -> list[Any]:
    """Run all calls; return their results in the order of ``runs``. The first error, or an interrupt, ends all."""
    results: list[Any] = [None] * len(runs)
    whole, done = sum(run.weight for run in runs), 0.0
    for place, result in run_each([run.call for run in runs], jobs):
        results[place] = result
        done += runs[place].weight
        progress(runs[place].label, min(1.0, done / whole))
    return results


def run_each(calls: Sequence[Callable[[], T]], jobs: int) -> Iterator[tuple[int, T]]:
    """Run the calls in ``jobs`` processes; yield each result with its call's index, as soon as it is there.

    The first error, an interrupt, or the end of the iteration ends the processes.
    """
    others = {*active_children()}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            with _without_interrupts():
                places = {pool.submit(call): place for place, call in enumerate(calls)}
            for future in as_completed(places):
                yield places[future], future.result()
        except BaseException:
            for process in {*active_children()} - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Have processes that are started here never see an interrupt, which a terminal sends to them, too.

    They would break the pool, and that would be reported in the place of the interrupt.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
