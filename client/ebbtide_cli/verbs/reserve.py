"""``ebb reserve``: compute how long to ask for when a job's run time is not known."""

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ebbtide_cli.commands.verb import OneOf, examples, json_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.verbs.simulate import simulator_errors

STRATEGIES = (
    "brute-force", "equal-time", "equal-probability", "mean-by-mean", "mean-stdev", "mean-doubling",
    "median-by-median",
)  # fmt: skip
TAIL = 1e-6
"""Reservations that a smaller share of the runs needs are not shown."""


@click.command(
    epilog=examples(
        "ebb reserve --dist lognormal:3,0.5",
        "ebb reserve --dist history:runs.txt --strategy equal-probability --alpha 0.95 --beta 1 --gamma 1.05",
        "ebb reserve --dist history:runs.txt --fit journal.db --beta 1",
    )
)
@click.option("--dist", metavar="NAME:NUMBERS",
              help=(
                  "Distribution of run times: exponential:RATE, weibull:SCALE,SHAPE, gamma:SHAPE,RATE, "
                  "lognormal:MU,SIGMA, truncnormal:MU,SIGMA, pareto:SCALE,SHAPE, uniform:LOW,HIGH, beta:A,B, "
                  "boundedpareto:LOW,HIGH,SHAPE, or history:FILE with a run time per line."
              ))  # fmt: skip
@click.option("--strategy", type=OneOf(STRATEGIES), default="equal-probability", show_default=True)
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Cost per second reserved.")
@click.option("--beta", type=float, default=0.0, show_default=True, help="Cost per second used.")
@click.option("--gamma", type=float, default=0.0, show_default=True, help="Cost of each reservation.")
@click.option(
    "--fit",
    metavar="FILE",
    help=("Fit alpha and gamma to how long jobs waited in this master's journal, or its export; times in seconds."),
)
@click.option("--n", "points", type=click.IntRange(1, 10_000), default=1000, show_default=True,
              help="Number of points of a discretised distribution, and of Monte-Carlo runs.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, help="Random seed of the Monte-Carlo estimate.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    dist: str | None,
    strategy: str,
    alpha: float,
    beta: float,
    gamma: float,
    fit: str | None,
    points: int,
    seed: int,
    as_json: bool,
) -> None:
    """Print the sequence of reservations to ask for, and its expected cost.

    A reservation of t for a run of x costs alpha·t + beta·min(t, x) + gamma. The expected cost is exact; the normalised
    one is divided by the cost with a run time that is known in advance.

    With --fit, waiting is modelled as alpha·t + gamma seconds; with --beta 1, the cost is then the time from the first
    request to the end of the job. Without --dist, only the fit is printed.
    """
    if dist is None and fit is None:
        raise Failure("--dist: is needed, or --fit", USAGE)
    for name in ("alpha", "gamma"):
        if fit is not None and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise Failure(f"--{name}: is what --fit finds; give one of the two", USAGE)
    facts: dict[str, Any] = {}
    endless = False
    with simulator_errors():
        if fit is not None:
            facts["fit"] = _fit(Path(fit))
            alpha, gamma = facts["fit"]["alpha"], facts["fit"]["gamma"]
        if dist is not None:
            found, endless = _sequence(dist, strategy, (alpha, beta, gamma), points, seed)
            facts |= found
    if as_json:
        print_json(facts)
    else:
        _print(facts, points, endless)


def _fit(path: Path) -> dict[str, float]:
    from ebbtide_sim.replay import read_either
    from ebbtide_sim.reserving.waiting import FitError, fit_waiting, starts

    try:
        fit = fit_waiting(list(starts(read_either(path))))
    except FitError as error:
        raise Failure(f"{path}: {error}") from None
    return {"alpha": fit.alpha, "gamma": fit.gamma, "starts": fit.starts, "residual_s": fit.residual_s}


def _sequence(
    dist: str, strategy: str, prices: tuple[float, float, float], points: int, seed: int
) -> tuple[dict[str, Any], bool]:
    """Compute the facts to print; also return whether ever longer reservations follow."""
    from ebbtide_core.reserving.cost import CostModel, expected_cost
    from ebbtide_core.reserving.distribution import ReservationError
    from ebbtide_core.reserving.sequences import STRATEGIES as MAKERS
    from ebbtide_core.reserving.sequences import covering
    from ebbtide_sim.reserving.distributions import parse_distribution
    from ebbtide_sim.reserving.sampling import draw, estimate
    from numpy.random import default_rng

    make = MAKERS[strategy]
    try:
        cost, distribution = CostModel(*prices), parse_distribution(dist)
        sequence = covering(make(distribution, cost, points), distribution, TAIL)
        exact = expected_cost(make(distribution, cost, points), distribution, cost)
        sampled = estimate(make(distribution, cost, points), draw(distribution, points, default_rng(seed)), cost)
    except (ReservationError, OverflowError) as error:
        raise Failure(str(error), USAGE) from None
    facts = {
        "sequence": sequence,
        "expected_cost": exact,
        "normalised_cost": exact / cost.omniscient(distribution),
        "monte_carlo": {"mean": sampled.mean, "stderr": sampled.stderr},
    }
    return facts, not math.isfinite(distribution.high)


def _print(facts: dict[str, Any], points: int, endless: bool) -> None:
    if fit := facts.get("fit"):
        print(
            f"Waiting time: {fit['alpha']:.4g} s per second asked for + {fit['gamma']:.4g} s "
            f"({fit['starts']} starts, {fit['residual_s']:.3g} s off)"
        )
    if "sequence" not in facts:
        return
    ends = f" (longer ones are needed by fewer than {TAIL:g} of the runs)" if endless else ""
    print(f"Ask for {', '.join(f'{reserved:.4g}' for reserved in facts['sequence'])}{ends}")
    cost, sampled = facts["expected_cost"], facts["monte_carlo"]
    print(f"Expected cost: {cost:.4g}, {facts['normalised_cost']:.3f} times the cost with a known run time")
    print(f"On {points} drawn runs: {sampled['mean']:.4g} ± {sampled['stderr']:.2g}")
