"""Sequences of reservations: what they cost, and that none is better than the best."""

import math
from itertools import combinations, islice, pairwise

import pytest
from ebbtide_core.reserving.cost import Checkpointing, CostModel, checkpointed_cost, expected_cost
from ebbtide_core.reserving.distribution import Empirical, ReservationError
from ebbtide_core.reserving.sequences import STRATEGIES, best_checkpointed, best_for, covering
from ebbtide_sim.experiments.reservations import PAPER
from ebbtide_sim.reserving.distributions import Exponential, Uniform, parse_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import share_of
from tests.late import scipy_integrate as integrate

ALPHA = CostModel()
FULL = CostModel(0.95, 1.0, 1.05)
every_distribution = pytest.mark.parametrize("name", PAPER)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
HISTORIES = st.lists(st.integers(1, 40).map(float), min_size=1, max_size=9)
COSTS = st.builds(CostModel, st.sampled_from([0.5, 1.0]), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 3.0]))


class TestDistributions:
    @every_distribution
    def test_moments_and_conditional_means_are_the_integrals_of_the_density(self, name):
        law = parse_distribution(name)
        low, high = law.low, law.high
        assert integrate.quad(law.pdf, low, high)[0] == pytest.approx(1, abs=1e-6)
        assert integrate.quad(lambda t: t * law.pdf(t), low, high)[0] == pytest.approx(law.mean, rel=1e-5)
        if math.isfinite(law.second_moment):
            square = integrate.quad(lambda t: t * t * law.pdf(t), low, high, limit=500)[0]
            assert square == pytest.approx(law.second_moment, rel=1e-4)
        t = law.quantile(0.7)
        beyond = integrate.quad(lambda x: x * law.pdf(x), t, high)[0] / law.sf(t)
        assert law.mean_beyond(t) == pytest.approx(beyond, rel=1e-5)

    @every_distribution
    @pytest.mark.parametrize("p", [0.01, 0.5, 0.99])
    def test_quantiles_undo_probabilities(self, name, p):
        law = parse_distribution(name)
        assert 1 - law.sf(law.quantile(p)) == pytest.approx(p, abs=1e-9)

    def test_a_history_counts_runs_that_are_strictly_longer(self):
        runs = Empirical([10.0, 10.0, 20.0, 40.0])
        assert (runs.sf(9), runs.sf(10), runs.sf(20), runs.sf(40)) == (1, 0.5, 0.25, 0)
        assert [runs.quantile(p) for p in (0.25, 0.5, 0.51, 0.75, 1)] == [10, 10, 20, 20, 40]
        assert (runs.mean, runs.mean_beyond(10), runs.mean_beyond(20)) == (20, 30, 40)


class TestCosts:
    def test_exponential_run_times_reserved_in_equal_steps(self):
        # E = step / (1 - e^-step)^2 for t_i = i·step, by the series of i·q^(i-1)
        step = 0.7
        sequence = (step * i for i in range(1, 10_000))
        assert expected_cost(sequence, Exponential(1.0), ALPHA) == pytest.approx(step / (1 - math.exp(-step)) ** 2)

    def test_one_reservation_for_all_costs_its_length(self):
        assert expected_cost([20.0], Uniform(10, 20), ALPHA) == 20
        assert expected_cost([20.0], Uniform(10, 20), FULL) == pytest.approx(0.95 * 20 + 15 + 1.05)

    @every_strategy
    @pytest.mark.parametrize("name", ["gamma:2,2", "beta:2,2", "uniform:10,20"])
    def test_the_series_is_the_mean_cost_of_a_run(self, name, strategy):
        law = parse_distribution(name)
        sequence = covering(STRATEGIES[strategy](law, FULL, 200), law, 1e-12)

        def paid(run):
            total = 0.0
            for reserved in sequence:
                total += FULL.alpha * reserved + FULL.beta * min(reserved, run) + FULL.gamma
                if run <= reserved:
                    return total
            return total

        cuts = [law.low, *(t for t in sequence if t < law.quantile(1 - 1e-13)), law.quantile(1 - 1e-13)]
        mean = sum(integrate.quad(lambda t: paid(t) * law.pdf(t), a, b)[0] for a, b in pairwise(cuts) if b > a)
        assert expected_cost(sequence, law, FULL) == pytest.approx(mean, rel=1e-3)

    def test_a_sequence_that_leaves_runs_out_has_no_cost(self):
        with pytest.raises(ReservationError, match="some runs are longer"):
            expected_cost([15.0], Uniform(10, 20), ALPHA)


class TestStrategies:
    @every_distribution
    @every_strategy
    def test_sequences_increase_and_reach_the_longest_run(self, name, strategy):
        law = parse_distribution(name)
        sequence = list(islice(STRATEGIES[strategy](law, ALPHA, 100), 500))
        assert all(before < after for before, after in pairwise(sequence))
        assert sequence[-1] == law.high or law.sf(sequence[-1]) < 1e-3

    @settings(max_examples=share_of(60), deadline=None, derandomize=True)
    @given(runs=HISTORIES, cost=COSTS)
    def test_the_programme_finds_what_trying_everything_finds(self, runs, cost):
        history = Empirical(runs)
        values = sorted(set(runs))
        weights = [runs.count(value) / len(runs) for value in values]
        found = expected_cost(best_for(values, weights, cost), history, cost)
        every = (
            expected_cost([*chosen, values[-1]], history, cost)
            for k in range(len(values))
            for chosen in combinations(values[:-1], k)
        )
        assert found == pytest.approx(min(every))

    @settings(max_examples=share_of(60), deadline=None, derandomize=True)
    @given(runs=HISTORIES, cost=COSTS, save=st.sampled_from([0.0, 1.0, 5.0]))
    def test_with_checkpoints_too(self, runs, cost, save):
        history, checkpoint = Empirical(runs), Checkpointing(save, save / 2)
        values = sorted(set(runs))
        weights = [runs.count(value) / len(runs) for value in values]
        found = checkpointed_cost(best_checkpointed(values, weights, cost, checkpoint), history, cost, checkpoint)
        every = (
            checkpointed_cost([*chosen, values[-1]], history, cost, checkpoint)
            for k in range(len(values))
            for chosen in combinations(values[:-1], k)
        )
        assert found == pytest.approx(min(every))

    @settings(max_examples=share_of(30), deadline=None, derandomize=True)
    @given(runs=HISTORIES)
    def test_a_free_checkpoint_never_costs_more_than_none(self, runs):
        history = Empirical(runs)
        values = sorted(set(runs))
        weights = [runs.count(value) / len(runs) for value in values]
        free = Checkpointing(0.0, 0.0)
        kept = checkpointed_cost(best_checkpointed(values, weights, ALPHA, free), history, ALPHA, free)
        assert kept <= expected_cost(best_for(values, weights, ALPHA), history, ALPHA) + 1e-9

    def test_brute_force_finds_the_known_optimum_of_exponential_run_times(self):
        first = next(STRATEGIES["brute-force"](Exponential(1.0), ALPHA, 1000))
        assert first == pytest.approx(0.742, abs=0.01)  # the recurrence collapses for first reservations just below it

    def test_the_recurrence_needs_a_price_for_time_reserved(self):
        with pytest.raises(ReservationError, match="--alpha: must be above 0 for brute-force"):
            next(STRATEGIES["brute-force"](Exponential(1.0), CostModel(0.0, 0.0, 1.0), 10))

    def test_a_history_has_no_density(self):
        with pytest.raises(ReservationError, match="use equal-probability"):
            next(STRATEGIES["brute-force"](Empirical([1.0, 2.0, 3.0]), ALPHA, 10))
