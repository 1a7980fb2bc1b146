"""The time per completion of a job, by its age and the lengths of earlier runs."""

import pytest
from ebbtide_core.estimates.gittins import LEAST_RUNS, LENGTHS_REMEMBERED, RunLengths
from hypothesis import given
from hypothesis import strategies as st


def runs(*lengths: float) -> RunLengths:
    known = RunLengths()
    for length in lengths:
        known.add(length)
    return known


def by_definition(lengths: list[float], age: float) -> float:
    """The least quotient of expected service and probability to end, over all ages up to which a job is served."""
    alive = [length for length in lengths if length > age]
    return min(
        sum(min(length, until) - age for length in alive) / sum(length <= until for length in alive) for until in alive
    )


def test_if_all_runs_take_equally_long_it_is_the_time_that_is_left() -> None:
    known = runs(*[100.0] * 5)
    assert [known.time_per_completion(age) for age in (0.0, 60.0, 99.0)] == [100.0, 40.0, 1.0]


def test_a_job_that_outlived_the_many_short_runs_is_expected_to_be_a_long_one() -> None:
    known = runs(10.0, 10.0, 10.0, 1000.0)
    assert known.time_per_completion(0.0) == pytest.approx(40 / 3)  # served for 10 s, three of four end
    assert known.time_per_completion(10.0) == 990.0


def test_of_a_job_that_outlived_all_runs_they_tell_nothing() -> None:
    assert runs(10.0, 20.0).time_per_completion(20.0) is None
    assert runs().time_per_completion(0.0) is None


def test_runs_of_a_group_tell_something_once_two_have_ended_however_many_go_on() -> None:
    known = RunLengths(alike=True)
    known.going = 60
    known.add(10.0)
    assert [known.tells] == [False]
    known.add(10.0)
    assert known.tells


def test_runs_tell_something_once_enough_ended_and_no_more_go_on() -> None:
    assert not runs(*[1.0] * (LEAST_RUNS - 1)).tells
    known = runs(*[1.0] * LEAST_RUNS)
    assert known.tells
    known.going = LEAST_RUNS + 1
    assert [known.tells] == [False]


@given(
    st.lists(st.integers(1, 50).map(float), min_size=1, max_size=LENGTHS_REMEMBERED + 20),
    st.integers(0, 99).map(lambda half: half / 2),
)
def test_it_is_the_least_quotient_over_the_last_runs(lengths: list[float], age: float) -> None:
    last = lengths[-LENGTHS_REMEMBERED:]
    found = runs(*lengths).time_per_completion(age)
    if age >= max(last):
        assert found is None
    else:
        # The best while from the last run that the job outlived is not over at this age.
        before = max((length for length in last if length <= age), default=0.0)
        bound = by_definition(last, before)
        assert found is not None
        assert found <= bound + 1e-9
        if before == age or not age:
            assert found == pytest.approx(by_definition(last, age))
