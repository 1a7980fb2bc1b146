"""The end of a distributed job, with the backend's threads played by the test."""

import atexit
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide import distributed
from ebbtide.distributed import ProcessGroup


@pytest.fixture(autouse=True)
def no_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that other tests have left in this process are not the backend's."""
    monkeypatch.setattr(distributed, "_switches", lambda: {"7": "1"})


ONE_LOOK = 1
"""What it takes to see that no other thread runs."""


class Tensor:
    """Stands for a tensor whose references are all that matters."""


def group_without_ranks() -> ProcessGroup:
    dist = SimpleNamespace(
        group=SimpleNamespace(WORLD=object()), get_rank=lambda: 0, get_world_size=lambda: 2, get_backend=lambda: "gloo"
    )
    torch = SimpleNamespace(
        inference_mode=lambda on: nullcontext(), zeros=lambda *size, **kind: Tensor(), int32=None, uint8=None
    )
    group = ProcessGroup(dist, torch)
    atexit.unregister(group._settle)
    return group


def clock(monkeypatch: pytest.MonkeyPatch, sleeping: Any) -> SimpleNamespace:
    """A clock that only sleeping moves on; `sleeping` is called each time, with how often that was."""
    time = SimpleNamespace(now=0.0, slept=0)

    def sleep(seconds: float) -> None:
        time.now += seconds
        time.slept += 1
        sleeping(time.slept)

    time.monotonic = lambda: time.now
    time.sleep = sleep
    monkeypatch.setattr(distributed, "time", time)
    return time


def test_the_interpreter_does_not_shut_down_under_the_backends_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_without_ranks()
    held = [group._votes, group._text]
    time = clock(monkeypatch, lambda times: held.pop() if times in (2, 4) else None)
    group._settle()
    assert held == []
    assert time.slept == 4 + ONE_LOOK


def test_it_waits_for_threads_that_let_go_of_what_the_script_had_too(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_without_ranks()
    switches = iter([{"7": "1"}, {"7": "2"}, {"7": "3", "8": "1"}, {"7": "3"}, {"7": "3"}])
    monkeypatch.setattr(distributed, "_switches", lambda: next(switches))
    time = clock(monkeypatch, lambda times: None)
    group._settle()
    assert time.slept == 4


def test_an_idle_backend_delays_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_without_ranks()
    time = clock(monkeypatch, lambda times: None)
    group._settle()
    assert time.slept == ONE_LOOK


def test_a_backend_that_never_lets_go_does_not_hold_the_process_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_without_ranks()
    held = group._votes
    time = clock(monkeypatch, lambda times: None)
    group._settle()
    assert 4.0 < time.now < 6.0
    assert held is group._votes
