"""Repeats seed 002 on reservation strategies: the table of nine distributions, the realistic case, open questions.

The open questions are the document's last ones: whether a checkpoint at the end of a reservation is of use, and
whether reservations suit a set of such jobs or scheduling on the fly is better.
"""

from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from ebbtide_core.reserving.cost import Checkpointing, CostModel, checkpointed_cost, expected_cost
from ebbtide_core.reserving.distribution import Distribution, Empirical
from ebbtide_core.reserving.sequences import STRATEGIES, best_checkpointed, best_for

from ebbtide_sim.draw import COLORS, drawn
from ebbtide_sim.experiments import Check, ExperimentReport, Progress
from ebbtide_sim.experiments.running import Run, run_all
from ebbtide_sim.reserving.distributions import Lognormal, parse_distribution
from ebbtide_sim.reserving.job_sets import MEAN_S, ON_THE_FLY, REGIMES, SAVE_S, JobSetOutcome, draw_set, play
from ebbtide_sim.reserving.sampling import brute_force_by_sampling, draw, estimate
from ebbtide_sim.workloads.nodes import SimNode

DESCRIPTION = "Reservation sequences for jobs of unknown length on nine distributions (seed 002)"

PAPER: Final = {
    "exponential:1": (2.15, 2.31, 2.36, 2.36, 2.39, 2.42, 2.83),
    "weibull:1,0.5": (2.12, 2.40, 2.22, 2.76, 3.58, 3.03, 3.05),
    "gamma:2,2": (2.02, 2.20, 2.13, 2.26, 2.18, 2.24, 2.51),
    "lognormal:3,0.5": (1.85, 1.87, 1.93, 2.19, 2.09, 1.95, 2.30),
    "truncnormal:8,1.4142": (1.36, 1.38, 1.36, 1.98, 1.83, 1.98, 2.16),
    "pareto:1.5,3": (1.62, 1.71, 1.66, 1.82, 2.18, 1.75, 2.26),
    "uniform:10,20": (1.33, 1.33, 1.33, 2.21, 1.90, 1.67, 2.21),
    "beta:2,2": (1.75, 1.79, 1.80, 2.02, 2.11, 1.98, 2.45),
    "boundedpareto:1,20,2.1": (1.80, 2.00, 1.91, 1.84, 2.09, 1.83, 2.81),
}
"""The paper's normalised costs, in the order of `STRATEGIES`."""
RESERVATION_ONLY: Final = CostModel(1.0, 0.0, 0.0)
SAMPLES: Final = 1000
REALISTIC: Final = CostModel(0.95, 1.0, 1.05)
VBMQA: Final = Lognormal(7.1128, 0.2039)
FACTORS: Final = (0.5, 1.0, 2.0, 4.0)
SAVES: Final = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)
"""Costs of a checkpoint as fractions of the mean run time; reading it costs as much again."""
SETS: Final = tuple(
    (law, sizes)
    for law in ("exponential:1", "weibull:1,0.5", "lognormal:3,0.5", "lognormal:7.1128,0.2039")
    for sizes in ((1,), (1, 2, 4, 8))
)
"""Kinds of job sets: the distribution of run times, and the GPU counts, which are equally likely."""
SET_JOBS: Final = 200
NODES: Final = tuple(SimNode(name=f"node{number}", gpus=8) for number in range(2))

ASSUMPTIONS: Final = (
    "parameters of the distributions were found by reproducing the table; with beta = gamma = 0 only shapes matter",
    "exact: the series of the expected cost, added up until terms no longer count; sampled: 1000 fresh run times per "
    "cell, as the paper did; its brute-force column is the least of 5000 such means, and so too low",
    "the realistic case: waiting time 0.95 per second reserved + 1.05 h, lognormal run times (mu 7.1128, sigma 0.2039 "
    "in seconds), both from memory of the publication; the document itself has only a figure without numbers",
    f"sets of jobs: {SET_JOBS} at once on 2 nodes of 8 GPUs, mean run time {MEAN_S / 3600:g} h, first come first "
    "served; whoever reserves does so by policy reservation (EASY backfill by what is asked for) unless it says fifo",
    "killed: the job starts from nothing in a longer reservation; checkpoint: --time auto as in a live cluster, "
    f"{SAVE_S:g} s to save and as much to go on; history: by 50 earlier runs of the script",
    "the cloud: reserved instances pay for what they reserve, on-demand ones for what they use",
)


def run(full: bool, seed: int, jobs: int, progress: Progress) -> ExperimentReport:
    """Compute all 63 cells, and the other tables with 1000 points (else 200), 20 sets of each kind (else 2)."""
    points, repeats = (1000, 20) if full else (200, 2)
    runs = (
        [Run(name, partial(_cells, name, seed), 0.5 / len(PAPER)) for name in PAPER],
        [Run("the realistic case", partial(_realistic, (a, b), points), 0.1 / 16) for a in FACTORS for b in FACTORS],
        [Run("checkpoints", partial(_checkpointed, name, points), 0.05 / len(PAPER)) for name in PAPER],
        [Run(f"sets of jobs, {kind[0]}", partial(_sets, kind, repeats, seed), 0.35 / len(SETS)) for kind in SETS],
    )
    found = iter(run_all([run for table in runs for run in table], jobs, progress))
    rows, realistic, checkpoints, sets = ([row for part in islice(found, len(table)) for row in part] for table in runs)
    return ExperimentReport(
        name="reservations",
        rows=tuple(rows),
        checks=(*_checks(rows, realistic, checkpoints), *_set_checks(sets)),
        assumptions=ASSUMPTIONS,
        draw=partial(_draw, rows, realistic, checkpoints, sets),
        details={"realistic": realistic, "checkpointed": checkpoints, "sets": sets},
        tables=_tables(realistic, checkpoints, sets),
    )


def _cells(name: str, seed: int) -> list[dict[str, Any]]:
    """Compute a row of the table: all strategies on one distribution."""
    distribution = parse_distribution(name)
    ideal = RESERVATION_ONLY.omniscient(distribution)
    cells = []
    for place, (strategy, make) in enumerate(STRATEGIES.items()):
        rng = np.random.default_rng([seed, list(PAPER).index(name), place])
        sequence = make(distribution, RESERVATION_ONLY, 1000)
        exact = expected_cost(sequence, distribution, RESERVATION_ONLY) / ideal
        sampled = estimate(
            make(distribution, RESERVATION_ONLY, 1000), draw(distribution, SAMPLES, rng), RESERVATION_ONLY
        )
        mean = sampled.mean / ideal
        if strategy == "brute-force":
            mean = brute_force_by_sampling(distribution, RESERVATION_ONLY, SAMPLES, rng) / ideal
        published = PAPER[name][place]
        noise = _noise(make(distribution, RESERVATION_ONLY, 1000), distribution) / ideal
        cells.append(
            {
                "distribution": name,
                "strategy": strategy,
                "exact": exact,
                "sampled": mean,
                "paper": published,
                "z": (published - exact) / max(noise, 0.003),
                "break_even_discount": 1 - 1 / exact,
            }
        )
    return cells


def _noise(sequence: Iterable[float], distribution: Distribution) -> float:
    """Estimate the standard error of a mean of 1000 costs from 100,000 samples, because some tails are heavy."""
    many = estimate(sequence, draw(distribution, 100 * SAMPLES, np.random.default_rng(1)), RESERVATION_ONLY)
    return float(many.stderr * 100**0.5)


def _realistic(factors: tuple[float, float], points: int) -> list[dict[str, Any]]:
    """Compute all strategies with VBMQA's mean and deviation of the run time (hours) times ``factors``."""
    mean = VBMQA.mean / 3600 * factors[0]
    deviation = (VBMQA.second_moment - VBMQA.mean**2) ** 0.5 / 3600 * factors[1]
    spread = np.log1p((deviation / mean) ** 2)
    distribution = Lognormal(float(np.log(mean) - spread / 2), float(np.sqrt(spread)))
    ideal = REALISTIC.omniscient(distribution)
    return [
        {
            "mean_factor": factors[0],
            "deviation_factor": factors[1],
            "strategy": strategy,
            "normalised_cost": expected_cost(make(distribution, REALISTIC, points), distribution, REALISTIC) / ideal,
        }
        for strategy, make in STRATEGIES.items()
    ]


def _checkpointed(name: str, points: int) -> list[dict[str, Any]]:
    """Compute the best sequences without checkpoints, and with checkpoints of different cost at each end."""
    drawn_from = parse_distribution(name)
    covered = 1.0 if drawn_from.high < float("inf") else 1 - 1e-7
    distribution = Empirical(drawn_from.quantile(covered * i / points) for i in range(1, points + 1))
    values, weights = distribution.runs, [1 / points] * points
    cost, ideal = RESERVATION_ONLY, RESERVATION_ONLY.omniscient(distribution)
    without = expected_cost(best_for(values, weights, cost), distribution, cost) / ideal
    rows = []
    for save in SAVES:
        checkpoint = Checkpointing(save * distribution.mean, save * distribution.mean)
        targets = best_checkpointed(values, weights, cost, checkpoint)
        with_them = checkpointed_cost(targets, distribution, cost, checkpoint) / ideal
        rows.append(
            {
                "distribution": name,
                "save_over_mean": save,
                "without": without,
                "with_checkpoints": with_them,
                "reservations": len(targets),
            }
        )
    return rows


def _sets(kind: tuple[str, tuple[int, ...]], repeats: int, seed: int) -> list[dict[str, Any]]:
    """Run all regimes on the same ``repeats`` sets of jobs; return means, and mean ratios to scheduling on the fly."""
    law, sizes = kind
    drawn = [
        draw_set(parse_distribution(law), SET_JOBS, sizes, np.random.default_rng([seed, SETS.index(kind), number]))
        for number in range(repeats)
    ]
    base = [play(jobs, ON_THE_FLY, NODES) for jobs in drawn]
    rows = []
    for regime in REGIMES:
        found = base if regime is ON_THE_FLY else [play(jobs, regime, NODES) for jobs in drawn]
        described = {"distribution": law, "gpus": _text(sizes), "regime": regime.name, "policy": regime.policy}
        rows.append({**described, "strategy": regime.strategy, **_means(found, base)})
    return rows


def _text(sizes: tuple[int, ...]) -> str:
    return "-".join(str(size) for size in sorted({sizes[0], sizes[-1]}))


def _means(found: list[JobSetOutcome], base: list[JobSetOutcome]) -> dict[str, float]:
    pairs = list(zip(found, base, strict=True))
    return {
        "makespan_h": _mean(outcome.makespan_s / 3600 for outcome in found),
        "mean_flow_h": _mean(outcome.mean_flow_s / 3600 for outcome in found),
        "used_gpu_h": _mean(outcome.used_gpu_s / 3600 for outcome in found),
        "wasted_gpu_h": _mean(outcome.wasted_gpu_s / 3600 for outcome in found),
        "starts_per_job": _mean(outcome.starts for outcome in found),
        "makespan_over": _mean(outcome.makespan_s / other.makespan_s for outcome, other in pairs),
        "flow_over": _mean(outcome.mean_flow_s / other.mean_flow_s for outcome, other in pairs),
    }


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(np.fromiter(values, float)))


def _checks(
    rows: list[dict[str, Any]], realistic: list[dict[str, Any]], kept: list[dict[str, Any]]
) -> tuple[Check, ...]:
    others = [row for row in rows if row["strategy"] != "brute-force"]
    near = [row for row in others if abs(row["z"]) <= 2]
    lowest = [_beats(rows, name) for name in PAPER]
    low = [row for row in rows if row["strategy"] == "brute-force" and row["sampled"] <= row["exact"] * 1.001]
    best = [row for row in realistic if row["strategy"] in ("brute-force", "equal-time", "equal-probability")]
    free = [row for row in kept if row["save_over_mean"] == 0.01]
    return (
        Check(
            "the paper's cells are our exact costs, give or take two standard errors of 1000 samples",
            len(near) >= 52,
            f"{len(near)} of {len(others)} cells outside the brute-force column (52 expected)",
        ),
        Check("brute force costs least in every row", all(lowest), f"{sum(lowest)} of {len(lowest)} rows, to 0.5%"),
        Check(
            "brute force chosen by samples looks better than it is",
            len(low) == len(PAPER),
            f"in {len(low)} of {len(PAPER)} rows the sampled minimum lies below the exact one, as in the paper",
        ),
        Check(
            "in the realistic case brute force and the dynamic programmes stay close to the omniscient",
            max(row["normalised_cost"] for row in best) < 2,
            f"at most {max(row['normalised_cost'] for row in best):.2f} times it; the others up to "
            f"{max(row['normalised_cost'] for row in realistic):.2f}",
        ),
        Check(
            "a cheap checkpoint at the end of each reservation pays (the document's open question)",
            all(row["with_checkpoints"] < row["without"] for row in free),
            "at 1% of the mean run time, cost falls from "
            f"{min(r['without'] for r in free):.2f}-{max(r['without'] for r in free):.2f} to "
            f"{min(r['with_checkpoints'] for r in free):.2f}-{max(r['with_checkpoints'] for r in free):.2f}",
        ),
    )


def _set_checks(sets: list[dict[str, Any]]) -> tuple[Check, ...]:
    killed = [row for row in sets if row["regime"] == "killed"]
    single = [row for row in killed if row["gpus"] == "1"]
    saved = [row for row in sets if row["regime"] == "checkpoint" and row["policy"] == "reservation"]
    gangs = [row for row in saved if row["gpus"] != "1"]
    return (
        Check(
            "sets of jobs with one GPU: on the fly beats reservations that kill (the document's preliminary result)",
            min(row["makespan_over"] for row in single) > 1 and _mean(row["flow_over"] for row in single) > 1,
            f"reservations end {_range(single, 'makespan_over')} times as late; mean flow time "
            f"{_range(single, 'flow_over')} times as long, {_mean(row['flow_over'] for row in single):.2f} on average",
        ),
        Check(
            "with checkpoints instead, all sets end earlier and less is wasted",
            all(_spares(row, killed) for row in saved),
            f"{_range(saved, 'makespan_over')} instead of {_range(killed, 'makespan_over')} times as late as on "
            "the fly",
        ),
        Check(
            "jobs with several GPUs: reservations with checkpoints beat on the fly, for they allow backfill",
            all(row["makespan_over"] < 1 and row["flow_over"] < 1 for row in gangs),
            f"they end {_range(gangs, 'makespan_over')} times as late, mean flow time {_range(gangs, 'flow_over')} "
            "times as long",
        ),
    )


def _spares(saved: dict[str, Any], killed: list[dict[str, Any]]) -> bool:
    """Return whether checkpoints beat every strategy that kills on the same sets."""
    same = [row for row in killed if (row["distribution"], row["gpus"]) == (saved["distribution"], saved["gpus"])]
    return all(saved[measure] < row[measure] for row in same for measure in ("makespan_h", "wasted_gpu_h"))


def _range(rows: list[dict[str, Any]], measure: str) -> str:
    values = [row[measure] for row in rows]
    return f"{min(values):.2f}-{max(values):.2f}"


def _tables(
    realistic: list[dict[str, Any]], kept: list[dict[str, Any]], sets: list[dict[str, Any]]
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the tables that are printed below the cells; in the first two, the varied parameter is in columns."""
    cases: dict[tuple[float, float], dict[str, Any]] = {}
    for row in realistic:
        place = {"mean_factor": row["mean_factor"], "deviation_factor": row["deviation_factor"]}
        cases.setdefault((row["mean_factor"], row["deviation_factor"]), place)[row["strategy"]] = row["normalised_cost"]
    saves: dict[str, dict[str, Any]] = {}
    for row in kept:
        place = {"distribution": row["distribution"], "without": row["without"]}
        saves.setdefault(row["distribution"], place)[f"save {row['save_over_mean']:g}"] = row["with_checkpoints"]
    return {
        "The realistic case, normalised cost, mean and deviation times the measured ones": tuple(cases.values()),
        "Normalised cost with a checkpoint at each end, by its cost over the mean run time": tuple(saves.values()),
        "Sets of jobs, and how many times the makespan and mean flow time of on the fly": tuple(sets),
    }


def _beats(rows: list[dict[str, Any]], name: str) -> bool:
    exact = {row["strategy"]: row["exact"] for row in rows if row["distribution"] == name}
    return bool(exact["brute-force"] <= min(exact.values()) * 1.005)


# --- the figure ---

Rows = list[dict[str, Any]]


def _draw(rows: Rows, realistic: Rows, kept: Rows, sets: Rows, path: Path) -> None:
    with drawn(path, 14, 12, 75) as figure:
        (table, discount), (deviation, mean), (saves, regimes) = figure.subplots(3, 2)
        _draw_table(table, discount, rows)
        for place, strategy in enumerate(STRATEGIES):
            lines = [row for row in realistic if row["strategy"] == strategy]
            _draw_case(deviation, lines, "deviation_factor", "mean_factor", COLORS[place], strategy)
            _draw_case(mean, lines, "mean_factor", "deviation_factor", COLORS[place], strategy)
        deviation.set(title="realistic case, mean run time as measured", xlabel="deviation, times the measured one",
                      ylabel="normalised cost")  # fmt: skip
        mean.set(title="realistic case, deviation as measured", xlabel="mean run time, times the measured one",
                 ylabel="normalised cost")  # fmt: skip
        for name, color in zip(_names(rows), [*COLORS, "#F0E442"], strict=False):
            line = [row for row in kept if row["distribution"] == name]
            saves.plot(SAVES, [row["with_checkpoints"] / row["without"] for row in line], "o-", color=color, label=name)
        saves.axhline(1, color="black", linewidth=0.8)
        saves.set(title="with checkpoints, over without", xlabel="cost of a checkpoint over the mean run time")
        saves.legend(fontsize=7)
        _draw_sets(regimes, sets)


def _names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["distribution"] for row in rows))


def _draw_table(table: Any, discount: Any, rows: Rows) -> None:
    names = _names(rows)
    for place, strategy in enumerate(STRATEGIES):
        cells = [row for row in rows if row["strategy"] == strategy]
        at = [index + (place - 3) * 0.11 for index in range(len(names))]
        table.bar(at, [cell["exact"] for cell in cells], 0.11, color=COLORS[place], label=strategy)
        table.plot(at, [cell["paper"] for cell in cells], "k_", markersize=4)
        discount.plot([100 * cell["break_even_discount"] for cell in cells], "o", color=COLORS[place], markersize=4)
    table.set(title="cost over the omniscient's (marks: the paper)", ylabel="normalised cost")
    table.legend(fontsize=7, ncols=2)
    discount.set(title="discount at which reserving breaks even", ylabel="% off the on-demand price")
    for axes in (table, discount):
        axes.set_xticks(range(len(names)), names, rotation=30, fontsize=7)


def _draw_case(axes: Any, lines: Rows, varied: str, fixed: str, color: str, label: str) -> None:
    line = [row for row in lines if row[fixed] == 1]
    axes.plot([row[varied] for row in line], [row["normalised_cost"] for row in line], "o-", color=color, label=label)


def _draw_sets(axes: Any, sets: Rows) -> None:
    """Draw a point for each distribution: circles for jobs with one GPU, triangles for jobs with several."""
    shown = list(dict.fromkeys((row["regime"], row["policy"], row["strategy"]) for row in sets))
    for color, kind in zip(COLORS, shown, strict=True):
        for gpus, marker in (("1", "o"), ("1-8", "^")):
            points = [
                row for row in sets if (row["regime"], row["policy"], row["strategy"], row["gpus"]) == (*kind, gpus)
            ]
            axes.plot(
                [row["makespan_over"] for row in points], [row["flow_over"] for row in points], marker, color=color,
                markersize=5, label=", ".join(filter(None, kind)) if gpus == "1" else None,
            )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(title="sets of jobs with 1 GPU (circles) and 1 to 8 (triangles), over on the fly", xlabel="makespan",
             ylabel="mean flow time")  # fmt: skip
    axes.legend(fontsize=7)
