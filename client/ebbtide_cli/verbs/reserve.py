"""``ebb reserve``: how long to ask for if nobody knows how long a job runs."""

import math

import click

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.output import print_json
from ebbtide_cli.verb import examples, json_option

STRATEGIES = (
    "brute-force", "equal-time", "equal-probability", "mean-by-mean", "mean-stdev", "mean-doubling",
    "median-by-median",
)  # fmt: skip
TAIL = 1e-6
"""Reservations that fewer runs than this need are not shown."""


@click.command(
    epilog=examples(
        "ebb reserve --dist lognormal:3,0.5",
        "ebb reserve --dist history:runs.txt --strategy equal-probability --alpha 0.95 --beta 1 --gamma 1.05",
    )
)
@click.option("--dist", metavar="NAME:NUMBERS", required=True,
              help="exponential:RATE, weibull:SCALE,SHAPE, gamma:SHAPE,RATE, lognormal:MU,SIGMA, truncnormal:MU,SIGMA, "
              "pareto:SCALE,SHAPE, uniform:LOW,HIGH, beta:A,B, boundedpareto:LOW,HIGH,SHAPE, or history:FILE with a "
              "run time per line.")  # fmt: skip
@click.option("--strategy", type=click.Choice(STRATEGIES), default="equal-probability", show_default=True)
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Cost per second reserved.")
@click.option("--beta", type=float, default=0.0, show_default=True, help="Cost per second used.")
@click.option("--gamma", type=float, default=0.0, show_default=True, help="Cost of each reservation.")
@click.option("--n", "points", type=click.IntRange(1, 10_000), default=1000, show_default=True,
              help="Points of a discretised distribution, and runs of the Monte-Carlo estimate.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the Monte-Carlo estimate.")
@json_option
def command(
    dist: str, strategy: str, alpha: float, beta: float, gamma: float, points: int, seed: int, as_json: bool
) -> None:
    """Print the reservations to ask for, one after the other, and what that is expected to cost.

    A reservation of t for a run of x costs alpha·t + beta·min(t, x) + gamma. The expected cost is exact; normalised, it
    is over the cost of one who knows the run time in advance.
    """
    try:
        from ebbtide_core.reserving.cost import CostModel, expected_cost
        from ebbtide_core.reserving.distribution import ReservationError
        from ebbtide_core.reserving.sequences import STRATEGIES as MAKERS
        from ebbtide_core.reserving.sequences import covering
        from ebbtide_sim.reserving.distributions import parse_distribution
        from ebbtide_sim.reserving.sampling import draw, estimate
        from numpy.random import default_rng
    except ModuleNotFoundError as error:
        raise Failure(f"{error.name} is not installed: pip install 'ebbtide[simulate]'") from None
    make = MAKERS[strategy]
    try:
        cost, distribution = CostModel(alpha, beta, gamma), parse_distribution(dist)
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
    if as_json:
        print_json(facts)
        return
    ends = "" if math.isfinite(distribution.high) else f" (longer ones are needed by fewer than {TAIL:g} of the runs)"
    print(f"Ask for {', '.join(f'{reserved:.4g}' for reserved in sequence)}{ends}")
    print(f"Expected cost: {exact:.4g}, {facts['normalised_cost']:.3f} times that of one who knows the run time")
    print(f"On {points} drawn runs: {sampled.mean:.4g} ± {sampled.stderr:.2g}")
