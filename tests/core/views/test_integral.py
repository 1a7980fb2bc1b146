"""Sums over time: the sum of any window, whatever came late, is what adding up everything gives."""

import pytest
from ebbtide_core.views import integral
from ebbtide_core.views.integral import Integral, Presence
from hypothesis import given
from hypothesis import strategies as st

TIMES = st.integers(0, 1000).map(lambda number: number / 8)
SPANS = st.lists(st.tuples(TIMES, TIMES, st.integers(1, 10)), max_size=40)


@given(SPANS, st.lists(st.tuples(TIMES, TIMES), max_size=5), st.sampled_from([2, 1024]))
def test_the_integral_of_a_window_is_what_all_changes_add_up_to(spans, windows, at_once) -> None:
    """Spans begin and end in any order, and somebody asks again and again."""
    patch = pytest.MonkeyPatch()
    patch.setattr(integral, "LATE_AT_ONCE", at_once)
    sums, known = Integral(), []
    for start, end, rate in spans:
        sums.change(start, rate)
        sums.change(end, -rate)
        known.append((start, end, rate))
        for first, last in map(sorted, windows):
            plain = [rate * (min(max(b, first), last) - min(max(a, first), last)) for a, b, rate in known]
            assert sums.between(first, last) == sum(plain)
    patch.undo()


def test_a_time_before_all_changes_adds_nothing() -> None:
    sums = Integral()
    sums.change(5.0, 2.0)
    assert (sums.between(-1e9, 5.0), sums.between(-1e9, 7.0)) == (0.0, 4.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 1, 2])), max_size=40), TIMES, TIMES)
def test_who_was_there_in_a_window_counts_once_however_often_it_came_back(moves, start, end) -> None:
    """Each of four comes, or leaves if it is there; time passes in between, or none does."""
    presence, now = Presence(), 0.0
    came, left, stays = dict[int, float](), dict[int, float](), list[tuple[int, float, float]]()
    for who, seconds in moves:
        now += seconds * 5
        if who in came:
            presence.leave(now, came[who], left.get(who))
            if now > came[who]:
                stays.append((who, came[who], now))
                left[who] = now
            del came[who]
        else:
            presence.enter(now, left.get(who))
            came[who] = now
    stays += [(who, since, 1e9) for who, since in came.items()]
    there = {who for who, since, until in stays if since < end and until > start}
    assert presence.count(start, end) == (len(there) if start < end else 0)
