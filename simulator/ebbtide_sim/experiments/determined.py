"""The worked examples of Determined's scheduling policies (seed 003): priorities in seven steps, and fair shares."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import WHOLE
from ebbtide_core.policies.registry import create_policy

from ebbtide_sim.draw import drawn
from ebbtide_sim.engine import Simulation
from ebbtide_sim.experiments import Check, ExperimentReport, Progress
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

DESCRIPTION = "Determined's worked examples: priorities in seven steps, and fair shares (seed 003)"

GPUS: Final = 8
PREEMPTION: Final = (("preemption", "on"), ("backfill", "on"))
NO_PREEMPTION: Final = (("preemption", "off"), ("backfill", "on"))

ASSUMPTIONS: Final = (
    f"one node with {GPUS} GPUs; times are ours, the seed has none",
    "an ASHA experiment is that many jobs of one GPU; no search algorithm decides how many",
    "a notebook is a job that is not preemptible; that it is killed means that it ends",
    "checkpoints cost no time, and a trial goes on where it was",
)

Gpus = dict[str, int]
"""GPUs by experiment."""


@dataclass(frozen=True, slots=True)
class ExpectedSizes:
    """The seed's statement: at ``time`` experiments have the ``expected`` GPUs, and all others none."""

    time: float
    what: str
    expected: Gpus


@dataclass(frozen=True, slots=True)
class PolicyScenario:
    """Jobs that arrive at set times under a policy, and the sizes expected at each step."""

    name: str
    policy: str
    options: tuple[tuple[str, str], ...]
    jobs: tuple[SimJob, ...]
    steps: tuple[ExpectedSizes, ...]


@dataclass(slots=True)
class Holdings:
    """An observer that records which jobs held how many GPUs, and when; an experiment is a bag of jobs."""

    experiments: dict[str, str] = field(default_factory=dict)
    spans: list[tuple[str, int, float, float]] = field(default_factory=list)
    """Tuples of job, GPUs, start and end (seconds)."""
    lost_s: float = 0.0
    _held: dict[str, tuple[int, float]] = field(default_factory=dict)

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        """Record the experiment of ``job``."""
        self.experiments[job.id] = job.bag

    def dropped(self, now: float, job: str, reason: str) -> None:
        """Raise ``AssertionError``, because no job of these examples is dropped."""
        raise AssertionError(f"job {job} was dropped: {reason}")

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        """Add up the computing time that was lost."""
        self.lost_s += 0.0 if kept else seconds

    def recorded(self, now: float, event: Event) -> None:
        """Record when a job gets and frees its GPUs."""
        if isinstance(event, e.AttemptPlaced):
            self._held[event.job] = (event.allocation.share // WHOLE, now)
        elif isinstance(event, e.AttemptExited):
            gpus, since = self._held.pop(event.job)
            self.spans.append((event.job, gpus, since, now))

    def at(self, time: float) -> Gpus:
        """Return the GPUs of all experiments that have any at ``time``, after all events of that moment."""
        held: Counter[str] = Counter()
        for job, gpus, since, until in self.spans:
            if since <= time < until:
                held[self.experiments[job]] += gpus
        return dict(held)

    def first(self, experiment: str) -> float:
        """Return when ``experiment`` first had GPUs, in seconds."""
        return min(since for job, _, since, _ in self.spans if self.experiments[job] == experiment)

    def unfinished(self, experiment: str, time: float) -> int:
        """Return how many jobs of ``experiment`` have not ended by ``time``."""
        ends = {job: until for job, _, _, until in self.spans if self.experiments[job] == experiment}
        return sum(until > time for until in ends.values())


def play(scenario: PolicyScenario) -> Holdings:
    """Simulate ``scenario`` to its end."""
    holdings = Holdings()
    node = SimNode(name="node", gpus=GPUS)
    policy = create_policy(scenario.policy, dict(scenario.options))
    Simulation([node], Recorded(sorted(scenario.jobs, key=lambda job: job.submit_s)), policy, [holdings]).run()
    return holdings


def _jobs(
    bag: str, count: int, gpus: int, priority: int, at: float, runs_s: float, *, preemptible: bool = True
) -> tuple[SimJob, ...]:
    return tuple(
        SimJob(
            id=f"{bag} {number}" if count > 1 else bag,
            submit_s=at,
            runtime_s=runs_s,
            bag=bag,
            gpus_min=gpus * WHOLE,
            gpus_max=gpus * WHOLE,
            priority=priority,
            preemptible=preemptible,
        )
        for number in range(1, count + 1)
    )


SEVEN_STEPS: Final = PolicyScenario(
    "priority",
    "priority",
    PREEMPTION,
    (
        *_jobs("asha", 20, 1, 2, 0, 150),
        *_jobs("train-4", 1, 4, 1, 100, 500),
        *_jobs("notebook", 1, 1, 3, 200, 1700, preemptible=False),
        *_jobs("train-8", 1, 8, 1, 2000, 600),
        *_jobs("train-4b", 1, 4, 2, 2100, 500),
    ),
    (
        ExpectedSizes(0, "1. 8 of 20 ASHA trials run", {"asha": 8}),
        ExpectedSizes(100, "2. 4 trials are preempted for a more urgent training on 4 GPUs", {"asha": 4, "train-4": 4}),
        ExpectedSizes(200, "3. a less urgent notebook waits while both need all 8", {"asha": 4, "train-4": 4}),
        ExpectedSizes(600, "3. it runs once they need 7 or fewer", {"asha": 4, "notebook": 1}),
        ExpectedSizes(1000, "4. both are complete, and the notebook runs", {"notebook": 1}),
        ExpectedSizes(2000, "5. an urgent training on 8 GPUs cannot start beside it", {"notebook": 1}),
        ExpectedSizes(2100, "6. a less urgent one on 4 GPUs uses the idle 7", {"notebook": 1, "train-4b": 4}),
        ExpectedSizes(
            2300, "7. the notebook is killed: the smaller one is preempted for the large one", {"train-8": 8}
        ),
        ExpectedSizes(2900, "7. which completes, and the smaller one goes on", {"train-4b": 4}),
    ),
)
WITHOUT_PREEMPTION: Final = PolicyScenario(
    "without preemption",
    "priority",
    NO_PREEMPTION,
    (
        *(replace(job, runtime_s=150.0 + 7 * n) for n, job in enumerate(_jobs("asha", 20, 1, 2, 0, 150))),
        *_jobs("train-4", 1, 4, 1, 100, 500),
    ),
    (),
)


def _fair(name: str, weights: tuple[float, float], second_at: float, *steps: ExpectedSizes) -> PolicyScenario:
    """Make a scenario of two experiments with demands of 10 and 30 GPUs; the second arrives at ``second_at``."""
    first = _jobs("first", 10, 1, 42, 0, 2000)
    second = _jobs("second", 30, 1, 42, second_at, 100)
    jobs = tuple(replace(job, weight=weights[job.bag == "second"]) for job in (*first, *second))
    return PolicyScenario(name, "fair-share", (), jobs, steps)


FAIR_SHARES: Final = (
    _fair(
        "fair share",
        (1, 1),
        0,
        ExpectedSizes(0, "demands of 10 and 30 get 2 and 6 of 8 GPUs", {"first": 2, "second": 6}),
    ),
    _fair("weights", (3, 1), 0, ExpectedSizes(0, "with weights 3 and 1 they get 4 each", {"first": 4, "second": 4})),
    _fair(
        "a second experiment",
        (1, 1),
        50,
        ExpectedSizes(0, "alone, the first gets all", {"first": 8}),
        ExpectedSizes(50, "when the second comes, shares are adjusted", {"first": 2, "second": 6}),
        ExpectedSizes(1000, "and when it is done, again", {"first": 8}),
    ),
)


def run(full: bool, seed: int, jobs: int, progress: Progress) -> ExperimentReport:
    """Play all scenarios. The arguments do not matter: scenarios are small, and nothing in them is random."""
    played: list[tuple[PolicyScenario, Holdings]] = []
    scenarios = (SEVEN_STEPS, WITHOUT_PREEMPTION, *FAIR_SHARES)
    for done, scenario in enumerate(scenarios, start=1):
        played.append((scenario, play(scenario)))
        progress(scenario.name, done / len(scenarios))
    return _report(played)


# --- the report ---


def _report(played: Sequence[tuple[PolicyScenario, Holdings]]) -> ExperimentReport:
    results = [(scenario, step, holdings.at(step.time)) for scenario, holdings in played for step in scenario.steps]
    by_name = {scenario.name: holdings for scenario, holdings in played}
    return ExperimentReport(
        name="determined",
        rows=tuple(
            {
                "scenario": scenario.name,
                "time_s": step.time,
                "step": step.what,
                "gpus": _text(gpus),
                "expected_gpus": _text(step.expected),
            }
            for scenario, step, gpus in results
        ),
        checks=(
            *(Check(step.what, gpus == step.expected, _text(gpus)) for _, step, gpus in results),
            *_checks(by_name[SEVEN_STEPS.name], by_name[WITHOUT_PREEMPTION.name]),
        ),
        assumptions=ASSUMPTIONS,
        draw=partial(_draw, by_name[SEVEN_STEPS.name]),
    )


def _checks(steps: Holdings, without: Holdings) -> tuple[Check, ...]:
    start = without.first("train-4")
    demand = without.unfinished("asha", start)
    notebook = steps.first("notebook")
    return (
        Check("preempted trials lose nothing", steps.lost_s == 0.0, f"{steps.lost_s:g} s of computing lost"),
        Check(
            "the notebook starts as soon as the two experiments need 7 GPUs or fewer",
            notebook == 600,
            f"{notebook:g} s",
        ),
        Check(
            "without preemption the training waits until ASHA's demand is 4 or less",
            demand <= 4 and without.at(start) == {"asha": demand, "train-4": 4},
            f"it starts at {start:g} s, when {demand} trials are left",
        ),
    )


def _text(gpus: Gpus) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(gpus.items())) or "none"


def _draw(holdings: Holdings, path: Path) -> None:
    """Draw which experiments hold the 8 GPUs in the course of the seven steps."""
    with drawn(path, 9, 4, 110) as figure:
        axes = figure.subplots()
        times = sorted({time for _, _, since, until in holdings.spans for time in (since, until)})
        names = list(dict.fromkeys(holdings.experiments.values()))
        heights = [[holdings.at(time).get(name, 0) for time in times] for name in names]
        axes.stackplot(times, heights, labels=names, step="post")
        for number, step in enumerate(SEVEN_STEPS.steps):
            axes.axvline(step.time, color="black", linewidth=0.6, linestyle=":")
            axes.text(step.time, GPUS + 0.15 + 0.45 * (number % 2), step.what.split(" ", 1)[0], fontsize=8)
        axes.set_xlabel("time (s)")
        axes.set_ylabel("GPUs")
        axes.set_ylim(0, GPUS + 1.2)
        axes.set_title("Determined's seven steps")
        axes.legend(fontsize=8, loc="upper center")
