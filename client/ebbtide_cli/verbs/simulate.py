"""``ebb simulate``: run policies on recorded or synthetic workloads, and the papers' experiments."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click
from click.core import ParameterSource

from ebbtide_cli.commands.sections import SectionedCommand, help_all_option
from ebbtide_cli.commands.verb import DURATION, SETTING, SIZE, OneOf, argument_type, examples, json_option
from ebbtide_cli.errors import FAILED, OK, USAGE, Failure
from ebbtide_cli.terminal.output import StatusLine, complain, print_json
from ebbtide_cli.values import format_duration
from ebbtide_cli.writing import check_writable, replaced

if TYPE_CHECKING:
    from ebbtide_sim.experiments import ExperimentReport
    from ebbtide_sim.metrics import Report
    from ebbtide_sim.setup import Setup
    from ebbtide_sim.simulate import Scenario
    from ebbtide_sim.sweep import SimulationSweep
    from ebbtide_sim.workload import Workload

T = TypeVar("T")
EXPERIMENTS = ("fitgpp", "equipartition", "hybrid", "determined", "reservations", "tide")
_SECTIONS: Final = {
    "Workload": ("--workload", "--jobs-limit", "--elastic", "--offline", "--arrival"),
    "Cluster": ("--nodes", "--cluster", "--gpu-mem", "--node-cpus", "--node-mem", "--supply"),
    "Policy": ("--policy", "--policy-option", "--times"),
    "How jobs run": ("--speedup", "--restart-cost", "--not-resumable", "--seed"),
    "Sweeps": ("--sweep", "--jobs", "--metric", "--engine", "--scheduler"),
    "Papers' experiments": ("--full",),
    "What is written": ("--plot", "--events"),
}
_OF_EXPERIMENTS: Final = frozenset({"experiment", "full", "seed", "jobs", "plot", "as_json"})
_DAILY: Final = frozenset(
    {
        *("--workload", "--jobs-limit", "--elastic", "--nodes", "--policy", "--policy-option", "--seed"),
        *("--sweep", "--jobs", "--full", "--plot", "--events"),
    }
)


def _parse_axis(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    chosen = tuple(values.split(","))
    if not (name and equals and all(chosen)):
        raise ValueError(f"{text[:60]!r} is not NAME=VALUE,VALUE,…")
    return name, chosen


AXIS = argument_type("name=values", _parse_axis)


class _SimulateCommand(SectionedCommand):
    def sections(self) -> Mapping[str, Sequence[str]]:
        return _SECTIONS

    def daily(self) -> Container[str]:
        return _DAILY


@click.command(
    cls=_SimulateCommand,
    epilog=examples(
        "ebb simulate --workload bags --nodes 2x8 --policy fitgpp",
        "ebb simulate --workload jobs.csv --nodes 84x8 --policy fifo --events out.jsonl --json",
        "ebb simulate --workload bags --jobs-limit 500 --sweep policy=fitgpp,fifo --sweep s=0,4 --jobs 2",
        "ebb simulate --workload bags --jobs-limit 400 --supply supply.toml --sweep idle=1m,30m --metric waiting_s.p95",
        "ebb simulate determined --plot determined.png",
    ),
)
@click.argument("experiment", required=False, type=OneOf(EXPERIMENTS))
@click.option("--full", is_flag=True, help="Run the experiment at the paper's size.")
@click.option("--workload", metavar="FILE|NAME", default="bags", show_default=True,
              help=(
                  "File with a trace (SWF, CSV, Philly, openb, Pollux or Google), or a generated workload: bags, "
                  "fitgpp or hybrid."
              ))  # fmt: skip
@click.option("--jobs-limit", "limit", metavar="N", type=click.IntRange(1), help="Simulate only the first N jobs.")
@click.option(
    "--arrival",
    type=OneOf(("submit", "start")),
    default="submit",
    help="Time of an SWF job that counts as its arrival.",
)
@click.option("--offline", is_flag=True, help="Submit all jobs at the beginning.")
@click.option(
    "--elastic",
    metavar="MIN-MAX",
    default="",
    help="Make every job elastic over this range of GPUs, such as 1-8 or 1/4-4.",
)
@click.option("--nodes", metavar="NxG", default="4x8", show_default=True, help="Cluster of N nodes with G GPUs each.")
@click.option("--node-cpus", metavar="N", type=click.FloatRange(0, 65536), default=32.0, help="CPUs of each node.")
@click.option("--node-mem", metavar="SIZE", type=SIZE, default="256GiB", help="Memory of each node.")
@click.option("--gpu-mem", metavar="SIZE", type=SIZE, default="80GiB", help="Memory of each GPU.")
@click.option(
    "--cluster", metavar="FILE", default="", help="CSV file with the nodes, instead of --nodes, if they differ."
)
@click.option(
    "--supply",
    metavar="FILE[:NAME]",
    help="Borrow nodes as jobs wait, by the table [supply.NAME] of this file; --nodes 0 then means none of its own.",
)
@click.option("--policy", metavar="NAME", default="fitgpp", show_default=True, help="Scheduling policy.")
@click.option("--policy-option", "options", metavar="K=V", type=SETTING, multiple=True, help="Option of the policy.")
@click.option(
    "--speedup",
    metavar="NAME|FILE",
    default="linear",
    help="Speed of a job by its number of GPUs: linear, dl-sublinear, or a CSV file.",
)
@click.option("--times", type=OneOf(("exact", "requested")), default="exact",
              help="Run times that policies know: the real ones, or those that users asked for.")  # fmt: skip
@click.option(
    "--restart-cost",
    metavar="TIME",
    type=DURATION,
    default="0s",
    help="Seconds from a relaunch until the job computes again.",
)
@click.option("--not-resumable", is_flag=True, help="Make preempted jobs start again from the beginning.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Random seed of everything that is drawn.")
@click.option(
    "--sweep", "axes", metavar="NAME=V,V", type=AXIS, multiple=True, help="Run every combination of these values."
)
@click.option(
    "--metric",
    default="slowdown.all.p95",
    show_default=True,
    help="Figure of the report that a sweep's plot shows; with --supply, by what was borrowed.",
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of processes."
)
@click.option(
    "--engine", type=OneOf(("processes", "dask")), default="processes", help="What runs a sweep's simulations."
)
@click.option("--scheduler", metavar="HOST:PORT", help="Address of the Dask cluster's scheduler.")
@click.option(
    "--events", metavar="FILE", type=click.Path(dir_okay=False), help="File to write every event to, as JSON lines."
)
@click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False), help="File to draw a picture to (PNG).")
@help_all_option
@json_option
def command(
    experiment: str | None,
    full: bool,
    axes: tuple[tuple[str, tuple[str, ...]], ...],
    metric: str,
    jobs: int,
    engine: str,
    scheduler: str | None,
    events: str | None,
    plot: str | None,
    as_json: bool,
    **setting: Any,
) -> int:
    """Simulate a workload under a policy, with the master's own scheduling code.

    With the name of an EXPERIMENT, repeat that experiment of a paper, and show the paper's figures beside ours.
    """
    with simulator_errors():
        if experiment is not None:
            _refuse_others(experiment)
            return _experiment(experiment, full, setting["seed"], jobs, plot, as_json)
        if full:
            raise Failure("--full: is for the named experiments", USAGE)
        setup = _setup(setting)
        if axes:
            if events:
                raise Failure("--events: is for one simulation, not for a sweep", USAGE)
            _sweep(setup, axes, metric, _engine(engine, scheduler, jobs), plot, as_json)
        else:
            _single(setup, events, plot, as_json)
    return OK


@contextmanager
def simulator_errors() -> Iterator[None]:
    """Report what the simulator refuses as wrong usage, and a missing package as one that can be installed."""
    try:
        from ebbtide_core.policies.registry import PolicyError
        from ebbtide_sim.workload import WorkloadError
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    try:
        yield
    except (PolicyError, WorkloadError) as error:
        raise Failure(str(error), USAGE) from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _missing(error: ModuleNotFoundError) -> Failure:
    extra = "dask" if error.name in ("dask", "distributed") else "simulate"
    return Failure(f"{error.name} is not installed: pip install 'ebbtide[{extra}]'")


def _setup(setting: dict[str, Any]) -> "Setup":
    from ebbtide_sim.setup import Setup

    supply = setting.pop("supply")
    if supply is not None:
        from ebbtide_cli.supplying.simulated import read_supply

        supply = read_supply(supply)
    return Setup(
        supply=supply,
        node_mem_bytes=setting.pop("node_mem"),
        gpu_mem_bytes=setting.pop("gpu_mem"),
        restart_cost_s=setting.pop("restart_cost"),
        resumable=not setting.pop("not_resumable"),
        options=dict(setting.pop("options")),
        **setting,
    )


# --- one simulation ---


def _single(setup: "Setup", events: str | None, plot: str | None, as_json: bool) -> None:
    from ebbtide_sim.draw import draw_run
    from ebbtide_sim.metrics import Metrics

    if plot:
        check_writable(plot)
    status = StatusLine()
    with status:
        status.show(f"reading {setup.workload} …")
        scenario = setup.scenario()
        metrics = Metrics()
        with _written(events) as log:
            report = _run(scenario, metrics, log, status)
    if as_json:
        print_json(report.to_json())
    else:
        print_reports([({"policy": setup.policy}, report)])
        print_notes(scenario.workload)
    if plot:
        with replaced(plot) as path:
            draw_run(list(metrics.tallies.values()), f"{scenario.workload.name} under {setup.policy}", path)


def _run(scenario: "Scenario", metrics: Any, log: TextIO | None, status: StatusLine) -> "Report":
    from ebbtide_sim.simulate import simulate

    total = max(1, len(scenario.workload.jobs))

    def progress(now: float, count: int) -> None:
        words = f"{format_duration(now)} simulated, {count} events"
        status.show(words, done=min(1.0, len(metrics.tallies) / total))

    return simulate(scenario, events=log, progress=progress, metrics=metrics)


@contextmanager
def _written(name: str | None) -> Iterator[TextIO | None]:
    """Open a file for writing, which appears under its name once it is complete."""
    if name is None:
        yield None
        return
    with replaced(name) as path, path.open("w", encoding="utf-8") as stream:
        yield stream


# --- sweeps ---


def _engine(engine: str, scheduler: str | None, jobs: int) -> Callable[[Sequence["Setup"]], Any]:
    from ebbtide_sim.sweep import in_processes, on_dask

    if engine == "dask" and scheduler is None:
        raise Failure("--scheduler: is needed with --engine dask, HOST:PORT of its scheduler", USAGE)
    if engine != "dask" and scheduler is not None:
        raise Failure("--scheduler: is for --engine dask", USAGE)
    return in_processes(jobs) if scheduler is None else on_dask(scheduler)


def _sweep(
    base: "Setup",
    axes: Sequence[tuple[str, tuple[str, ...]]],
    metric: str,
    engine: Callable[[Sequence["Setup"]], Any],
    plot: str | None,
    as_json: bool,
) -> None:
    from ebbtide_sim.sweep import combine

    sweep = combine(base, axes)
    for why in sweep.skipped:
        complain(why)
    first = _checked(sweep)
    if plot:
        _check_plot(first, metric, plot)
    reports: dict[int, Report] = {}
    with StatusLine() as status:
        status.show(f"0 of {len(sweep.runs)} simulations", done=0.0)
        for index, report in engine([setup for _, setup in sweep.runs]):
            reports[index] = report
            status.show(f"{len(reports)} of {len(sweep.runs)} simulations", done=len(reports) / len(sweep.runs))
    results = [(parameters, reports[index]) for index, (parameters, _) in enumerate(sweep.runs)]
    if as_json:
        print_json([{"parameters": parameters, "report": report.to_json()} for parameters, report in results])
    else:
        print_reports(results)
    if plot:
        _plot_sweep(results, metric, plot)


def _checked(sweep: "SimulationSweep") -> "Scenario":
    """Refuse a wrong combination before the first one runs, and return that; the workload is checked for it only."""
    for _, setup in sweep.runs:
        replace(setup, workload="bags", limit=1).scenario()
    return sweep.runs[0][1].scenario()


def _check_plot(scenario: "Scenario", metric: str, plot: str) -> None:
    from ebbtide_sim.draw import value_of
    from ebbtide_sim.simulate import unmeasured

    check_writable(plot)
    with _metric_errors(metric):
        value_of(unmeasured(scenario), metric)


def _plot_sweep(results: Sequence[tuple[dict[str, str], "Report"]], metric: str, plot: str) -> None:
    from ebbtide_sim.draw import draw_borrowing, draw_sweep

    draw = draw_sweep if any(report.supply is None for _, report in results) else draw_borrowing
    with replaced(plot) as path, _metric_errors(metric):
        draw(results, metric, path)


@contextmanager
def _metric_errors(metric: str) -> Iterator[None]:
    """Report a figure that a report does not have as wrong usage."""
    try:
        yield
    except (KeyError, TypeError):
        raise Failure(f"--metric: {metric!r} is no number of the report, such as slowdown.te.p95", USAGE) from None


# --- named experiments ---


def _refuse_others(experiment: str) -> None:
    """Refuse options on the command line that no experiment has."""
    from ebbtide_sim.workloads.loading import GENERATORS

    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name not in _OF_EXPERIMENTS
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        what = f"{', '.join(given)}: {'is' if len(given) == 1 else 'are'} not for a named experiment"
        meant = f": did you mean '--workload {experiment}'?" if experiment in GENERATORS else ""
        raise Failure(what + meant, USAGE)


def _experiment(name: str, full: bool, seed: int, jobs: int, plot: str | None, as_json: bool) -> int:
    from ebbtide_sim.experiments import load_experiment

    if plot:
        check_writable(plot)
    with StatusLine() as status:
        status.show(f"{name} …", done=0.0)
        experiment = load_experiment(name)
        report = experiment.run(full, seed, jobs, lambda words, done: status.show(words, done=done))
    if as_json:
        print_json(report.to_json())
    else:
        _print_experiment(report)
    if plot:
        with replaced(plot) as path:
            report.draw(path)
    return OK if all(check.held for check in report.checks) else FAILED


def _print_experiment(report: "ExperimentReport") -> None:
    _print_rows(report.rows)
    for title, rows in report.tables.items():
        print(f"\n{title}:")
        _print_rows(rows)
    print()
    for check in report.checks:
        print(f"{'✓' if check.held else '✗'} {check.name}: {check.detail}")
    print("\nAssumed:")
    for assumption in report.assumptions:
        print(f"- {assumption}")


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from ebbtide_cli.terminal.drawing import print_table

    titles = list(dict.fromkeys(name for row in rows for name in row))
    print_table([title.upper() for title in titles], [[_cell(row.get(title)) for title in titles] for row in rows])


# --- tables ---


def print_reports(results: Sequence[tuple[dict[str, str], "Report"]]) -> None:
    """Print a line for each simulation: its parameters, then its results."""
    from ebbtide_cli.terminal.drawing import print_table

    names = list(dict.fromkeys(name for parameters, _ in results for name in parameters))
    titles = [*(name.upper() for name in names), "FINISHED", "MAKESPAN", "UTILISATION", "BUSY", "FLOW MEAN", "FLOW P95",
              "TE P95", "BE P50", "BE P95", "PREEMPTIONS", "RESIZES", "DROPPED"]  # fmt: skip
    print_table(
        titles, [[parameters.get(name, "-") for name in names] + _row(report) for parameters, report in results]
    )
    if any(report.supply is not None for _, report in results):
        print()
        _print_borrowed(results)


def _print_borrowed(results: Sequence[tuple[dict[str, str], "Report"]]) -> None:
    """Print a line for each simulation with what it borrowed, and how long jobs waited."""
    from ebbtide_cli.terminal.drawing import print_table

    names = list(dict.fromkeys(name for parameters, _ in results for name in parameters))
    titles = [*(name.upper() for name in names), "LOANS", "PREEMPTED", "MOVES", "QUEUE MEAN", "WAIT MEAN", "WAIT P95",
              "GPU HOURS", "IDLE HOURS", "COST"]  # fmt: skip
    rows = []
    for parameters, report in results:
        supply = report.supply or {}
        row = [
            *(str(supply[name]) for name in ("loans", "preempted", "moves")),
            _time(supply["queue_s"]["mean"]),
            _time(report.waiting_s["mean"]),
            _time(report.waiting_s["p95"]),
            *(_cell(supply[name]) for name in ("gpu_hours", "idle_gpu_hours", "cost")),
        ]
        rows.append([parameters.get(name, "-") for name in names] + row)
    print_table(titles, rows)


def _row(report: "Report") -> list[str]:
    return [
        f"{report.finished}/{report.jobs}",
        format_duration(report.makespan_s),
        f"{report.utilisation:.1%}",
        f"{report.busy:.1%}",
        _time(report.flow_time_s["mean"]),
        _time(report.flow_time_s["p95"]),
        _cell(report.slowdown["te"]["p95"]),
        _cell(report.slowdown["be"]["p50"]),
        _cell(report.slowdown["be"]["p95"]),
        str(report.preemptions),
        str(report.resizes),
        str(report.dropped),
    ]


def print_notes(workload: "Workload") -> None:
    """Print what was assumed, and what was left out."""
    for note in workload.notes:
        print(f"Note: {note}")
    for why, count in workload.skipped.items():
        print(f"Skipped: {count} jobs: {why}")


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)
