"""How many times faster the compiled core simulates than the interpreted one, in CPU seconds, in turn.

    python benchmarks/compiled_core.py --trace HPC2N-2002-2.2-cln.swf.gz

It compiles the core as a wheel has it (minutes), and simulates the first jobs of the trace on each in a process of its
own, ``--rounds`` times; reading the trace is not counted. Both must decide the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
NODES: Final = 120
CORES: Final = 2
"""The cluster of the trace: 120 nodes of two processors."""


def run(trace: str, jobs: int, policy: str) -> dict[str, Any]:
    """Simulate the first ``jobs`` of ``trace``, and return the CPU seconds with what shows that runs are equal."""
    from ebbtide_cli.overview import core
    from ebbtide_core.policies.registry import create_policy
    from ebbtide_core.views.digest import digest
    from ebbtide_sim.engine import Simulation
    from ebbtide_sim.setup import Setup
    from ebbtide_sim.sources import Recorded

    setup = Setup(workload=trace, nodes=f"{NODES}x{CORES}", policy=policy, limit=jobs)
    scenario = setup.scenario()
    source = Recorded(scenario.workload.jobs)
    world = Simulation(scenario.nodes, source, create_policy(policy, {}), (), scenario.world, keep_jobs=True)
    began = time.process_time()
    world.run()
    seconds = time.process_time() - began
    return {"core": core(), "cpu_s": seconds, "events": world.events, "digest": digest(world.cluster.state)}


def once(given: argparse.Namespace, compiled: Path | None) -> dict[str, Any]:
    """Run in a process of its own, with the compiled modules or without."""
    command = [sys.executable, __file__, "--once", *("--trace", given.trace, "--policy", given.policy)]
    path = {} if compiled is None else {"PYTHONPATH": str(compiled)}
    ran = subprocess.run(
        [*command, "--jobs", str(given.jobs)], env=os.environ | path, check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def main() -> None:
    """Compile, run in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--policy", default="rigid-fcfs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", type=Path, help="a folder of scripts/compile_core.py, not to compile again")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(run(given.trace, given.jobs, given.policy)))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = given.compiled or Path(made)
        if given.compiled is None:
            subprocess.run([sys.executable, REPOSITORY / "scripts" / "compile_core.py", folder], check=True)
        pure, compiled = [], []
        for _ in range(given.rounds):
            pure.append(once(given, None))
            compiled.append(once(given, folder))
            print(f"pure {pure[-1]['cpu_s']:.2f} s, compiled {compiled[-1]['cpu_s']:.2f} s", flush=True)
    assert {each["core"] for each in pure} == {"pure Python core"}
    assert {each["core"] for each in compiled} == {"compiled core"}
    assert len({(each["events"], each["digest"]) for each in (*pure, *compiled)}) == 1, "they decide the same"
    print(f"{median(p['cpu_s'] / c['cpu_s'] for p, c in zip(pure, compiled, strict=True)):.2f} times faster")


if __name__ == "__main__":
    main()
