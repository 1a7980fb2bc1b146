"""Runs many simulations that differ in a few parameters in parallel: in local processes, or on a Dask cluster."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from ebbtide_core.model.spelling import none_of
from ebbtide_core.policies.registry import POLICIES, PolicyError, option_names
from ebbtide_protos.quantities import parse_duration

from ebbtide_sim.borrowing import SETTINGS, SimulatedSupply
from ebbtide_sim.experiments.running import run_each
from ebbtide_sim.metrics import Report
from ebbtide_sim.setup import Setup
from ebbtide_sim.simulate import simulate
from ebbtide_sim.workload import WorkloadError

PARAMETERS: Final = ("policy", "nodes", "seed", "restart-cost", "elastic", *SETTINGS)
"""The parameters that can be varied beside the options of policies."""
Engine = Callable[[Sequence[Setup]], Iterable[tuple[int, Report]]]
"""Runs simulations and yields each report with the index of its setup, in any order."""
Parameters = dict[str, str]


@dataclass(frozen=True, slots=True)
class SimulationSweep:
    """The valid combinations, and the reasons why others are skipped."""

    runs: tuple[tuple[Parameters, Setup], ...]
    skipped: tuple[str, ...]


def combine(base: Setup, axes: Sequence[tuple[str, Sequence[str]]]) -> SimulationSweep:
    """Combine all values of ``axes`` on top of ``base``.

    An option that a combination's policy lacks is ignored, so that such combinations run only once; raise `PolicyError`
    if no policy has an option. Every combination is checked before any is run.
    """
    runs: dict[tuple[Any, ...], tuple[Parameters, Setup]] = {}
    skipped: dict[str, None] = {}
    for values in product(*(values for _, values in axes)):
        wanted = dict(zip((name for name, _ in axes), values, strict=True))
        setup, dropped = _applied(base, wanted)
        for name in dropped:
            skipped[f"{setup.policy} has no option {name}: it runs once, whatever its value"] = None
        used = {name: value for name, value in wanted.items() if name not in dropped}
        runs.setdefault(tuple(used.items()), (used, setup))
    _check_options(axes, [setup.policy for _, setup in runs.values()])
    return SimulationSweep(tuple(runs.values()), tuple(skipped))


def _check_options(axes: Sequence[tuple[str, Sequence[str]]], policies: Sequence[str]) -> None:
    for name, _ in axes:
        if name not in PARAMETERS and not any(name in option_names(policy) for policy in policies):
            raise PolicyError(f"--sweep: {name!r} is no option of {', '.join(dict.fromkeys(policies))}, and none of "
                              f"{', '.join(PARAMETERS)}")  # fmt: skip


def _applied(base: Setup, wanted: Parameters) -> tuple[Setup, list[str]]:
    """Return ``base`` with the ``wanted`` values, and the names of those that its policy does not have."""
    setup, dropped = base, []
    if "policy" in wanted:
        setup = replace(setup, policy=wanted["policy"], options=_own(base, wanted["policy"]))
    if setup.policy not in POLICIES:
        raise PolicyError(f"--sweep: policy {none_of(setup.policy, POLICIES)}")
    for name, value in wanted.items():
        match name:
            case "policy":
                pass
            case "nodes" if setup.cluster:
                raise WorkloadError("--sweep: nodes are those of --cluster: leave one of the two out")
            case "nodes":
                setup = replace(setup, nodes=value)
            case "seed":
                setup = replace(setup, seed=_number(name, value, int))
            case "restart-cost":
                setup = replace(setup, restart_cost_s=_number(name, value, float))
            case "elastic":
                setup = replace(setup, elastic=value)
            case _ if name in SETTINGS:
                setup = replace(setup, supply=_supply(setup, name, value))
            case _ if name in option_names(setup.policy):
                setup = replace(setup, options={**setup.options, name: value})
            case _:
                dropped.append(name)
    return setup, dropped


def _supply(setup: Setup, name: str, value: str) -> SimulatedSupply:
    if setup.supply is None:
        raise WorkloadError(f"--sweep: {name} is a setting of a supply: name one with --supply")
    if name not in ("after", "idle"):
        return setup.supply.changed(name, _number(name, value, int))
    try:
        return setup.supply.changed(name, parse_duration(value))
    except ValueError as error:
        raise WorkloadError(f"--sweep: {name}: {error}") from None


def _own(base: Setup, policy: str) -> dict[str, str]:
    """Return the options of ``base`` that ``policy`` has."""
    if policy not in POLICIES:
        return {}
    return {name: value for name, value in base.options.items() if name in option_names(policy)}


def _number(name: str, value: str, kind: type[int] | type[float]) -> Any:
    try:
        number = kind(value)
    except ValueError:
        raise WorkloadError(f"--sweep: {name} takes a number, not {value!r}") from None
    if not 0 <= number < 1e12:
        raise WorkloadError(f"--sweep: {name} is at least 0, not {value}")
    return number


def run_setup(setup: Setup) -> Report:
    """Run one simulation of a sweep."""
    return simulate(setup.scenario())


def in_processes(jobs: int) -> Engine:
    """Return an engine that runs simulations in ``jobs`` local processes, which end with the iteration."""

    def run(setups: Sequence[Setup]) -> Iterator[tuple[int, Report]]:
        yield from run_each([partial(run_setup, setup) for setup in setups], min(jobs, len(setups)))

    return run


def on_dask(scheduler: str) -> Engine:
    """Return an engine that runs simulations on the Dask cluster whose scheduler listens at ``scheduler``."""

    def run(setups: Sequence[Setup]) -> Iterator[tuple[int, Report]]:
        from distributed import Client, as_completed

        with Client(scheduler, timeout="10s") as client:
            futures = {client.submit(run_setup, setup, pure=False): index for index, setup in enumerate(setups)}
            for future in as_completed(futures):
                yield futures[future], future.result()

    return run
