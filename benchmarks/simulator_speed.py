"""How fast the simulator is: side by side with AccaSim on a real trace, and FitGpp's study at its full size.

    python benchmarks/simulator_speed.py accasim --trace HPC2N-2002-2.2-cln.swf.gz --accasim ACCASIM_VENV/bin/python
    python benchmarks/simulator_speed.py fitgpp

Every simulation runs in a process of its own. ``accasim`` runs both simulators in turn, ``--rounds`` times each, on
the same trace, from reading it to the end: Ebbtide's ``rigid-fcfs`` (arrival order, later jobs pass one that does not
fit) through the very `Cluster` that the master runs, its checks on; AccaSim's first-in-first-out with first fit. Then
ours runs once more, and the events that it recorded are folded one by one into an empty cluster: both states must be
equal.
"""

import argparse
import gzip
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.digest import digest
from ebbtide_sim.engine import Simulation
from ebbtide_sim.experiments.fitgpp import FITGPP, MAIN, cluster, record
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import SimNode
from marks import Measured

NODES: Final = 120
CORES: Final = 2
"""The cluster of the trace: 120 nodes of two processors."""
JOBS: Final = 2**19
FASTER: Final = 3.0
SECONDS: Final = 120.0
BYTES: Final = 2 * 2**30
"""The marks: times faster than AccaSim; seconds and memory for FitGpp's study."""


class KeptEvents:
    """Keeps what the cluster recorded."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, Event]] = []

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        """Not needed."""

    def dropped(self, now: float, job: str, reason: str) -> None:
        """Not needed."""

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        """Not needed."""

    def recorded(self, now: float, event: Event) -> None:
        """Keep ``event``."""
        self.lines.append((now, event))


def run_hpc2n(trace: str) -> dict[str, Any]:
    """Read and simulate ``trace`` under rigid-fcfs; times are of both."""
    began, busy = time.perf_counter(), time.process_time()
    jobs = load_workload(trace, 0).jobs
    world = Simulation(_nodes(), Recorded(jobs), create_policy("rigid-fcfs", {}))
    world.run()
    took = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - busy}
    return took | {"jobs": len(jobs), "finished": world.cluster.state.submissions - len(world.cluster.state.jobs)}


def replay_hpc2n(trace: str) -> dict[str, Any]:
    """Simulate ``trace`` once more, keep all that is recorded, and fold it step by step."""
    journal = KeptEvents()
    source = Recorded(load_workload(trace, 0).jobs)
    world = Simulation(_nodes(), source, create_policy("rigid-fcfs", {}), [journal], keep_jobs=True)
    world.run()
    again = Cluster(create_policy("rigid-fcfs", {}))
    for now, event in journal.lines:
        again.replay(event, now)
    return {"events": len(journal.lines), "state": digest(world.cluster.state), "folded": digest(again.state)}


def _nodes() -> tuple[SimNode, ...]:
    return tuple(SimNode(name=f"node{number}", gpus=CORES) for number in range(NODES))


def run_fitgpp(jobs: int) -> dict[str, Any]:
    """Record ``jobs`` jobs under FIFO, then time FitGpp on the same arrivals."""
    _, recorded = record(jobs, 0, MAIN)
    began, busy = time.perf_counter(), time.process_time()
    workload = Workload("fitgpp", recorded)
    scenario = Scenario(workload=workload, nodes=cluster(), policy=FITGPP.name, options=dict(FITGPP.options))
    report = simulate(scenario)
    took = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - busy}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return took | {"jobs": jobs, "finished": report.finished, "peak_bytes": peak}


def _apart(*command: str) -> dict[str, Any]:
    """The JSON that ``command`` prints last."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _times(run: dict[str, Any]) -> str:
    return f"{run['seconds']:.1f} s ({run['cpu_s']:.1f} s of CPU)"


def _accasim(python: str, trace: Path, folder: Path) -> dict[str, Any]:
    """One run of AccaSim on the trace."""
    plain = folder / "trace.swf"  # AccaSim reads no .gz
    if not plain.exists():
        with gzip.open(trace) as packed, plain.open("wb") as out:
            shutil.copyfileobj(packed, out)
    other = str(Path(__file__).with_name("accasim_fifo.py"))
    return _apart(python, other, str(plain), str(NODES), str(CORES))


def compare(trace: Path, accasim: str, rounds: int) -> bool:
    """Run both in turn; whether all marks hold."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, rounds + 1):
            ours.append(_apart(sys.executable, __file__, "run-hpc2n", str(trace)))
            theirs.append(_accasim(accasim, trace, Path(folder)))
            print(f"round {number}: ebbtide {_times(ours[-1])}, AccaSim {_times(theirs[-1])}", flush=True)
        replay = _apart(sys.executable, __file__, "replay-hpc2n", str(trace))
    ratio = median(run["seconds"] for run in theirs) / median(run["seconds"] for run in ours)
    same, all_ran = replay["state"] == replay["folded"], all(run["finished"] == run["jobs"] for run in ours)
    print(f"{ours[0]['jobs']} jobs ({theirs[0]['run']} by AccaSim); all of ours finished: {all_ran}")
    print(f"ebbtide is {ratio:.2f} times faster than AccaSim (mark: {FASTER:g})")
    print(f"state after {replay['events']} events equals step-by-step replay: {same} ({replay['state'][:16]}...)")
    return ratio >= FASTER and same and all_ran


def full_study(jobs: int) -> bool:
    """Time FitGpp's study; whether it stays within the marks."""
    run = _apart(sys.executable, __file__, "run-fitgpp", str(jobs))
    print(f"{run['finished']} of {run['jobs']} jobs under fitgpp in {_times(run)} (mark: {SECONDS:g} s)")
    print(f"peak memory {run['peak_bytes'] / 2**30:.2f} GiB (mark: {BYTES / 2**30:g} GiB)")
    return bool(run["seconds"] < SECONDS and run["peak_bytes"] < BYTES and run["finished"] == run["jobs"])


def measured(jobs: int, trace: Path | None, accasim: str | None) -> Iterator[Measured]:
    """Simulated jobs in a CPU second: ``jobs`` of FitGpp's study, and the trace and AccaSim if they are there."""
    run = _apart(sys.executable, __file__, "run-fitgpp", str(jobs))
    assert run["finished"] == run["jobs"], run
    name = f"simulation of {jobs:,} generated jobs under fitgpp"
    yield Measured(name=name, value=jobs / run["cpu_s"], unit="jobs/s", least=JOBS / SECONDS, shown="simulator")
    if trace is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        theirs = _accasim(accasim, trace, Path(folder)) if accasim is not None else None
    ours = _apart(sys.executable, __file__, "run-hpc2n", str(trace))
    beside = {"AccaSim": theirs["run"] / theirs["cpu_s"]} if theirs is not None else {}
    name = f"simulation of HPC2N's {ours['jobs']:,} jobs under rigid-fcfs, reading them included"
    least = FASTER * beside["AccaSim"] if beside else None
    yield Measured(name=name, value=ours["jobs"] / ours["cpu_s"], unit="jobs/s", least=least, beside=beside)


def main() -> int:
    """Read the command line; 1 if a mark was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_subparsers(dest="which", required=True)
    side_by_side = which.add_parser("accasim", help="rigid-fcfs against AccaSim 1.1.3 on a trace")
    side_by_side.add_argument("--trace", type=Path, required=True)
    side_by_side.add_argument("--accasim", required=True, help="a Python that has AccaSim")
    side_by_side.add_argument("--rounds", type=int, default=3)
    study = which.add_parser("fitgpp", help="2^19 jobs under fitgpp")
    study.add_argument("--jobs", type=int, default=JOBS)
    which.add_parser("run-hpc2n", help="one run of ours, as JSON").add_argument("trace")
    which.add_parser("replay-hpc2n", help="our run, folded from its events").add_argument("trace")
    which.add_parser("run-fitgpp", help="one run of FitGpp, as JSON").add_argument("jobs", type=int)
    args = parser.parse_args()
    match args.which:
        case "run-hpc2n":
            print(json.dumps(run_hpc2n(args.trace)))
        case "replay-hpc2n":
            print(json.dumps(replay_hpc2n(args.trace)))
        case "run-fitgpp":
            print(json.dumps(run_fitgpp(args.jobs)))
        case "accasim":
            return 0 if compare(args.trace, args.accasim, args.rounds) else 1
        case _:
            return 0 if full_study(args.jobs) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
