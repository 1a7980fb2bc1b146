"""Checks which statements of the paper hold here."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ebbtide_sim.experiments import Check
from ebbtide_sim.experiments.equipartition.cases import (
    COSTLY,
    CPUS,
    FCFS,
    LIVE,
    MALLEABLE,
    MALLEABLE_PRO,
    MOLDABLE,
    MOLDABLE_PRO,
    POLICIES,
    RESTARTS_S,
    Arrival,
    EquipartitionCase,
    PolicyVariant,
    WorkloadPart,
)
from ebbtide_sim.experiments.equipartition.report import (
    Measure,
    Results,
    flow_max,
    flow_mean,
    job_flow_mean,
    makespan,
    stretch_max,
    stretch_mean,
    utilisation,
)

ALMOST: Final = 2.0
"""The percentage by which values that the paper calls almost identical may differ."""


def checks(results: Results) -> tuple[Check, ...]:
    """Check the statements of §V and §VI for each workload, and whether the live defaults do better."""
    found: list[Check] = []
    for part in results.sizes:
        found += _processors(results, part) if part.of_processors else _gpu_workload(results, part)
    return tuple(found)


# --- processors ---


def _processors(results: Results, part: WorkloadPart) -> Iterator[Check]:
    sizes = results.sizes[part]
    used = {
        gpus: [results.value(utilisation, EquipartitionCase(part, gpus, policy)) for policy in POLICIES]
        for gpus in sizes
    }
    if part is WorkloadPart.HPC2N:
        yield Check(
            f"{part}: utilisation is almost the same under all policies",
            all(max(values) / min(values) < 1 + ALMOST / 100 for values in used.values()),
            _by_size((gpus, f"{min(values):.3f} to {max(values):.3f}") for gpus, values in used.items()),
        )
    most = {gpus: max(values) for gpus, values in used.items()}
    yield Check(
        f"{part}: {sizes[0]} processors are saturated, {CPUS} are not",
        most[sizes[0]] > 0.95 and most[CPUS] < 0.95,
        "utilisation at most " + _by_size((gpus, f"{value:.3f}") for gpus, value in most.items()),
    )
    yield from _flow(results, part)
    yield from _offline(results, part)


def _flow(results: Results, part: WorkloadPart) -> Iterator[Check]:
    for policy in (MOLDABLE, MOLDABLE_PRO):
        flow = {case.gpus: results.change(flow_mean, case) for case in results.over_sizes(part, policy)}
        yield Check(
            f"{part}: average flow of {policy.label} is worse than rigid up to {CPUS} processors, better with more",
            all((change > 0) == (gpus <= CPUS) for gpus, change in flow.items()),
            _by_size((gpus, f"{change:+.1f}%") for gpus, change in flow.items()),
        )
    light = [case for case in results.over_sizes(part, MALLEABLE) if case.gpus > CPUS]
    changes = {case.gpus: results.change(flow_mean, case) for case in light}
    yield Check(
        f"{part}: average flow of malleable-equipartition is better than rigid with more than {CPUS} processors",
        all(change < 0 for change in changes.values()),
        _by_size((gpus, f"{change:+.1f}%") for gpus, change in changes.items()),
    )


def _offline(results: Results, part: WorkloadPart) -> Iterator[Check]:
    def changes(measure: Measure, policy: PolicyVariant, base: PolicyVariant = FCFS) -> list[float]:
        return results.changes(measure, results.over_sizes(part, policy, arrival=Arrival.OFFLINE), base)

    malleable, moldable = changes(makespan, MALLEABLE), changes(makespan, MOLDABLE)
    yield Check(
        f"{part}, all at once: makespan of malleable-equipartition is at most 2.7% shorter than rigid",
        all(-2.75 <= change <= ALMOST for change in malleable),
        _range(malleable),
    )
    yield Check(
        f"{part}, all at once: makespan of moldable-equipartition is worse than rigid and malleable",
        all(change > max(0.0, other) for change, other in zip(moldable, malleable, strict=True)),
        _range(moldable) + " against rigid",
    )
    for ours, base in ((MOLDABLE_PRO, MOLDABLE), (MALLEABLE_PRO, MALLEABLE)):
        spans, flows = changes(makespan, ours, base), changes(flow_mean, ours, base)
        yield Check(
            f"{part}, all at once: {ours.label} as {base.label}",
            all(abs(change) < ALMOST for change in (*spans, *flows)),
            f"makespan {_range(spans)}, average flow {_range(flows)} (paper: identical)",
        )


# --- the GPU workload ---


def _gpu_workload(results: Results, part: WorkloadPart) -> Iterator[Check]:
    for policy, least, most in ((MOLDABLE, -15.1, -96.7), (MALLEABLE, -42.5, -97.2)):
        changes = results.changes(flow_mean, results.over_sizes(part, policy))
        yield Check(
            f"{part}: average flow of {policy.label} is better than rigid with any number of GPUs",
            all(change < 0 for change in changes),
            f"{_range(changes)} (paper {least:+.1f}% to {most:+.1f}%)",
        )
    yield _no_worse(results, part)
    changes = results.changes(flow_max, results.over_sizes(part, MALLEABLE))
    yield Check(
        f"{part}: greatest flow of malleable-equipartition is no worse than rigid",
        all(change <= ALMOST for change in changes),
        f"{_range(changes)} (paper: up to -66.6%)",
    )
    yield _beyond(results, part)
    for policy, least in ((MOLDABLE, -26.7), (MALLEABLE, -36.2)):
        yield from _stretch(results, part, policy, least)
    if part is not WorkloadPart.PHILLY:
        for policy, least in ((MOLDABLE, -6.7), (MALLEABLE, -17.5)):
            changes = results.changes(job_flow_mean, results.over_sizes(part, policy))
            yield Check(
                f"{part}: average flow per job of {policy.label} is better than rigid",
                all(change < 0 for change in changes),
                f"{_range(changes)} (paper: at least {least:+.1f}%)",
            )
    yield from _clairvoyant(results, part)
    if part in COSTLY:
        yield from _restarts(results, part)


def _no_worse(results: Results, part: WorkloadPart) -> Check:
    measured = {
        name: results.changes(measure, results.over_sizes(part, MALLEABLE), MOLDABLE)
        for name, measure in (("average", flow_mean), ("greatest", flow_max))
    }
    return Check(
        f"{part}: flow of malleable-equipartition is no worse than moldable's while restarts are free",
        all(change <= ALMOST for changes in measured.values() for change in changes),
        ", ".join(f"{name} {_range(changes)}" for name, changes in measured.items()),
    )


def _beyond(results: Results, part: WorkloadPart) -> Check:
    gpus = max(1, results.sizes[part][0] // 2)
    used = {
        policy.label: results.value(utilisation, EquipartitionCase(part, gpus, policy))
        for policy in (FCFS, MOLDABLE, MALLEABLE)
    }
    rigid, *others = used.values()
    return Check(
        f"{part}: sharing GPUs takes utilisation beyond 100% when overloaded, rigid stays below",
        rigid <= 1.0 < min(others),
        f"{gpus} GPUs: " + ", ".join(f"{name} {value:.2f}" for name, value in used.items()),
    )


def _stretch(results: Results, part: WorkloadPart, policy: PolicyVariant, least: float) -> Iterator[Check]:
    changes = results.changes(stretch_mean, results.over_sizes(part, policy))
    yield Check(
        f"{part}: average stretch of {policy.label} is better than rigid",
        all(change < 0 for change in changes),
        f"{_range(changes)} (paper: at least {least:+.1f}%)",
    )
    middle = [EquipartitionCase(part, gpus, policy) for gpus in results.sizes[part][1:4]]
    changes = results.changes(stretch_max, iter(middle))
    yield Check(
        f"{part}: greatest stretch of {policy.label} is about halved under medium load",
        all(change <= -40 for change in changes),
        f"{_range(changes)} (paper -50.0% to -62.5%)",
    )


def _clairvoyant(results: Results, part: WorkloadPart) -> Iterator[Check]:
    for ours, base in ((MOLDABLE_PRO, MOLDABLE), (MALLEABLE_PRO, MALLEABLE)):
        changes = results.changes(flow_mean, results.over_sizes(part, ours), base)
        paper = " (paper +5.1% with 12 GPUs)" if ours is MOLDABLE_PRO else ""
        yield Check(
            f"{part}: {ours.label}, which knows run times, gains nothing over {base.label}",
            all(change > -ALMOST for change in changes),
            f"average flow {_range(changes)}, {changes[1]:+.1f}% with {results.sizes[part][1]} GPUs{paper}",
        )


# --- restarts that are not free ---


def _restarts(results: Results, part: WorkloadPart) -> Iterator[Check]:
    sizes = results.sizes[part]
    for cost in RESTARTS_S:
        costly = list(results.over_sizes(part, MALLEABLE, restart_s=cost))
        changes = results.changes(flow_mean, iter(costly), MOLDABLE)
        yield Check(
            f"{part}: at {cost:g} s per restart malleable-equipartition is no better than moldable when crowded",
            all(change > -ALMOST for change in changes[:2]),
            "average flow " + _by_size(zip(sizes, (f"{change:+.1f}%" for change in changes), strict=True)),
        )
        changes = results.changes(flow_max, iter(costly[2:]), MOLDABLE)
        yield Check(
            f"{part}: at {cost:g} s per restart malleable-equipartition keeps its greatest flow when not crowded",
            all(change < 0 for change in changes),
            "against moldable " + _by_size(zip(sizes[2:], (f"{change:+.1f}%" for change in changes), strict=True)),
        )
        if LIVE in COSTLY[part]:
            yield _beaten(results, costly)


def _beaten(results: Results, costly: Iterable[EquipartitionCase]) -> Check:
    """Compare the live defaults with the paper's unrestricted policy, and with the moldable one."""
    ours = [replace(case, policy=LIVE) for case in costly]
    flows = [
        (results.value(flow_mean, live), results.value(flow_mean, case))
        for live, case in zip(ours, costly, strict=True)
    ]
    against = [(live / case - 1) * 100 for live, case in flows]
    moldable = results.changes(flow_mean, iter(ours), MOLDABLE)
    return Check(
        f"{ours[0].part}: at {ours[0].restart_s:g} s per restart the live defaults do better than the paper's policy",
        all(change <= ALMOST for change in (*against, *moldable)) and min(against) < -ALMOST,
        f"average flow {_range(against)}; against moldable {_range(moldable)}",
    )


def _range(changes: list[float]) -> str:
    return f"{max(changes):+.1f}% to {min(changes):+.1f}%"


def _by_size(values: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{gpus}: {value}" for gpus, value in values)
