"""Simulates every policy, and writes the event logs and the fingerprints of what was left into a folder.

    python -m tests.compiled.runs FOLDER

Whether the core that runs is compiled is up to the path of modules; what is written must not depend on it.
"""

import json
import pickle
import sys
from copy import deepcopy
from pathlib import Path

from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.views.digest import digest
from ebbtide_sim.engine import Simulation
from ebbtide_sim.eventlog import EventLog
from ebbtide_sim.setup import Setup
from ebbtide_sim.sources import Recorded

SETUPS = {
    "bags": Setup(workload="bags", nodes="4x8", limit=150, elastic="1/2-4", seed=1),
    "fitgpp": Setup(workload="fitgpp", nodes="6x8", limit=150, restart_cost_s=30.0, seed=2),
}


def main(folder: Path) -> None:
    """Run all, and write what came of it."""
    left: dict[str, object] = {}
    for kind, setup in SETUPS.items():
        scenario = setup.scenario()
        for policy in POLICIES:
            name = f"{kind}-{policy}"
            with open(folder / f"{name}.jsonl", "w") as log:
                jobs, observers = Recorded(scenario.workload.jobs), [EventLog(log)]
                made = create_policy(policy, {})
                world = Simulation(scenario.nodes, jobs, made, observers, scenario.world, keep_jobs=True)
                world.run()
            state = world.cluster.state
            seen = left[name] = {"events": world.events, "now": world.now, "digest": digest(state)}
            assert digest(deepcopy(world.cluster).state) == seen["digest"]
            assert pickle.loads(pickle.dumps(state.jobs)) == state.jobs
    (folder / "left.json").write_text(json.dumps(left, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
