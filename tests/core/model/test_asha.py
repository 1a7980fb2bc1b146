"""Asynchronous successive halving: who goes on, who waits, who is given up (Li et al. 2020)."""

import random

import pytest
from ebbtide_core.model.asha import RungPlace, SuccessiveHalving, result_of
from ebbtide_core.model.spec.halving import Asha, Mode
from ebbtide_core.model.types import JobId, ProgressFacts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import share_of


def asha(**changes):
    return Asha(**({"min_steps": 100, "max_steps": 1600} | changes))


def sweep_of(count, **changes):
    halving = SuccessiveHalving(asha(**changes))
    for number in range(count):
        halving.add(JobId(str(number)))
    return halving


def reach(halving, **results):
    for id, value in results.items():
        halving.reach(JobId(id[1:]), value)


# --- rungs ---


@pytest.mark.parametrize(
    ("low", "high", "eta", "rungs"),
    [(100, 1600, 4, (100, 400)), (100, 1601, 4, (100, 400, 1600)), (1, 9, 3, (1, 3)), (5, 6, 2, (5,))],
)
def test_rungs_are_eta_times_further_each_and_below_the_most_steps(low, high, eta, rungs) -> None:
    assert asha(min_steps=low, max_steps=high, eta=eta).rungs() == rungs


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"eta": 1}, "eta: 1 is not between 2 and 100"),
        ({"min_steps": 0}, "min-steps: 0 is not"),
        ({"max_steps": 100}, "max-steps: 100 is not more than min-steps, 100"),
        ({"metric": ""}, "metric: has no name"),
        ({}, ""),
    ],
)
def test_settings_that_make_no_sense_are_named(changes, fault) -> None:
    assert asha(**changes).fault().startswith(fault)
    assert bool(asha(**changes).fault()) is bool(fault)


@pytest.mark.parametrize(
    ("progress", "metric", "result"),
    [
        (ProgressFacts(1, loss=0.5), "loss", (True, 0.5)),
        (ProgressFacts(1, loss=0.5, metrics={"loss": 0.25}), "loss", (True, 0.25)),
        (ProgressFacts(1, diverged=("loss",)), "loss", (True, None)),
        (ProgressFacts(1, loss=0.5), "accuracy", (False, None)),
        (ProgressFacts(1, metrics={"accuracy": 0.0}), "accuracy", (True, 0.0)),
        (ProgressFacts(1), "loss", (False, None)),
    ],
)
def test_a_result_is_the_newest_value_of_the_metric(progress, metric, result) -> None:
    assert result_of(progress, metric) == result


# --- who goes on ---


def test_who_comes_first_waits_until_there_are_eta_results_and_the_best_of_these_goes_on() -> None:
    halving = sweep_of(8)
    for id, value in (("0", 3.0), ("1", 1.0), ("2", 2.0)):
        halving.reach(JobId(id), value)
        assert halving.promotable() == []
    halving.reach(JobId("3"), 4.0)
    assert halving.promotable() == ["1"]
    halving.promote(JobId("1"))
    assert halving.promotable() == []
    assert halving.next_rung(JobId("1")) == 400
    assert not halving.tasks[JobId("1")].waits


def test_who_waits_goes_on_once_it_is_among_the_best_of_more_results() -> None:
    halving = sweep_of(8)
    reach(halving, t0=1.0, t1=2.0, t2=3.0, t3=4.0)
    halving.promote(JobId("0"))
    reach(halving, t4=5.0, t5=6.0, t6=7.0)
    assert halving.promotable() == []
    assert halving.place(JobId("1")) == RungPlace(rung=0, rank=2, of=7, best=1)
    reach(halving, t7=8.0)
    assert halving.promotable() == ["1"]


def test_with_mode_max_the_greater_results_are_better() -> None:
    halving = sweep_of(4, mode=Mode.MAX)
    reach(halving, t0=0.1, t1=0.9, t2=-5.0, t3=0.5)
    assert halving.promotable() == ["1"]


def test_what_is_no_number_is_the_worst_and_of_equals_the_first_to_come_is_better() -> None:
    halving = sweep_of(4, eta=2)
    reach(halving, t0=None, t1=1e300, t2=1e300, t3=None)
    assert halving.promotable() == ["1", "2"]
    assert [halving.place(JobId(id)).rank for id in "0123"] == [3, 1, 2, 4]


def test_of_equals_the_first_to_come_is_better_also_if_another_was_cancelled_in_between() -> None:
    halving = sweep_of(3, eta=2)
    reach(halving, t2=0.1, t1=0.5)
    halving.end(JobId("2"), stopped_early=False)
    reach(halving, t0=0.5)
    assert [halving.place(JobId(id)).rank for id in "10"] == [1, 2]


def test_those_at_a_higher_rung_go_on_first() -> None:
    halving = sweep_of(9, eta=2, max_steps=401)
    reach(halving, t0=1.0, t1=2.0, t2=3.0, t3=4.0)
    for id in "01":
        halving.promote(JobId(id))
    reach(halving, t0=1.0, t1=2.0, t4=0.5, t5=9.0)
    assert halving.promotable() == ["0", "4"]


# --- the end of a finite array ---


def test_the_best_goes_on_from_every_rung_however_few_they_are() -> None:
    halving = sweep_of(3)
    reach(halving, t0=3.0, t1=2.0)
    assert halving.promotable() == []
    halving.end(JobId("2"))  # it has failed before the first rung: nobody else can come
    assert (halving.promotable(), halving.hopeless()) == (["1"], ["0"])
    halving.promote(JobId("1"))
    halving.end(JobId("0"))
    reach(halving, t1=2.0)
    assert halving.promotable() == ["1"]


def test_who_cannot_be_among_the_best_any_more_is_given_up_before_all_have_come() -> None:
    halving = sweep_of(8)
    reach(halving, t0=1.0, t1=2.0)
    assert halving.hopeless() == []
    reach(halving, t2=3.0)  # 8 tasks: 2 go on in the end
    assert halving.hopeless() == ["2"]
    reach(halving, t3=0.5)
    assert halving.hopeless() == ["1", "2"]
    halving.end(JobId("7"))  # 7 tasks: one
    assert halving.hopeless() == ["0", "1", "2"]


def test_who_went_on_is_not_given_up_though_better_ones_came_later() -> None:
    halving = sweep_of(8)
    reach(halving, t0=4.0, t1=5.0, t2=6.0, t3=7.0)
    halving.promote(JobId("0"))
    reach(halving, t4=1.0, t5=2.0, t6=3.0, t7=3.5)
    assert "0" not in halving.hopeless()
    assert halving.promotable() == ["4", "5"]


# --- as a whole ---


def run(halving, curves, workers, speed, seed):
    """Workers that take the promotable tasks first, then new ones; how many steps each task has made."""
    chance = random.Random(seed)
    steps, new, busy, time = dict.fromkeys(curves, 0), list(curves), [], 0.0
    while True:
        for id in [id for id in halving.hopeless() if halving.tasks[id].waits]:
            halving.end(id)
        ready = halving.promotable()
        while len(busy) < workers and (ready or new):
            id = ready.pop(0) if ready else new.pop(0)
            if halving.tasks[id].waits:
                halving.promote(id)
            goal = halving.next_rung(id) or halving.asha.max_steps
            busy.append((time + (goal - steps[id]) / chance.uniform(*speed), id, goal))
        if not busy:
            assert halving.over, "somebody waits for ever"
            return steps
        busy.sort()
        time, id, goal = busy.pop(0)
        steps[id] = goal
        if goal == halving.asha.max_steps:
            halving.end(id)
        else:
            halving.reach(id, curves[id](goal))


@pytest.mark.parametrize("seed", range(5))
def test_of_64_curves_one_of_the_best_is_found_with_a_fraction_of_the_steps(seed: int) -> None:
    chance = random.Random(seed)
    finals = {JobId(str(number)): chance.uniform(0.1, 2.0) for number in range(64)}

    def curve(final):
        rate, noise = chance.uniform(0.002, 0.02), random.Random(final)
        return lambda step: final + 2.0 / (1.0 + rate * step) + noise.gauss(0.0, 0.02)

    halving = SuccessiveHalving(asha(min_steps=100, max_steps=6400))
    for id in finals:
        halving.add(id)
    steps = run(halving, {id: curve(final) for id, final in finals.items()}, 8, (0.5, 2.0), seed)
    full = [id for id, made in steps.items() if made == 6400]
    best = sorted(finals, key=finals.__getitem__)
    assert set(full) & set(best[:6]), "none of the best tenth has run to its end"
    assert sum(steps.values()) < 64 * 6400 / 8
    assert min(steps.values()) == 100


@settings(max_examples=share_of(60), deadline=None, derandomize=True)
@given(
    count=st.integers(1, 30), eta=st.integers(2, 5), most=st.integers(101, 5000), workers=st.integers(1, 5),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_nobody_waits_for_ever_one_runs_to_its_end_and_each_rung_passes_its_part(
    count, eta, most, workers, seed
) -> None:
    chance = random.Random(seed)
    halving = sweep_of(count, eta=eta, max_steps=most)
    values = {id: chance.choice([None, 1.0, chance.random()]) for id in halving.tasks}
    steps = run(halving, {id: lambda step, value=value: value for id, value in values.items()}, workers, (1, 3), seed)
    assert max(steps.values()) == most
    for rung in range(1, len(halving.rungs)):
        before = sum(len(task.results) >= rung for task in halving.tasks.values())
        after = sum(len(task.results) > rung for task in halving.tasks.values())
        assert after >= max(1, before // eta)
