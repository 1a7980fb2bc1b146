"""Compiles the core and the simulator's engine with mypyc, from the very source that runs where no compiler was.

    python scripts/compile_core.py FOLDER [--opt-level 0]

FOLDER gets a copy of both packages, with an extension module beside each module that is compiled; Python takes the
extension module if both are there. `make compiled-wheel` puts these into a wheel, and tests run against FOLDER on
PYTHONPATH.
"""

import argparse
import os
import shutil
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("core/ebbtide_core", "simulator/ebbtide_sim")
GROUP: Final = "ebbtide_native"
"""Names the library that all compiled modules share; the name of a package would not do."""
COMPILED: Final = (
    "ebbtide_core/admission/queues.py",
    "ebbtide_core/cluster.py",
    "ebbtide_core/estimates/gittins.py",
    "ebbtide_core/estimates/outlook.py",
    "ebbtide_core/estimates/work.py",
    "ebbtide_core/job/job.py",
    "ebbtide_core/job/outcome.py",
    "ebbtide_core/lifecycle/attempts.py",
    "ebbtide_core/lifecycle/ending.py",
    "ebbtide_core/planning/defragment.py",
    "ebbtide_core/planning/draft.py",
    "ebbtide_core/planning/elastic.py",
    "ebbtide_core/planning/fair_share/claims.py",
    "ebbtide_core/planning/fair_share/fairness.py",
    "ebbtide_core/planning/fair_share/granting.py",
    "ebbtide_core/planning/fair_share/groups.py",
    "ebbtide_core/planning/pool.py",
    "ebbtide_core/planning/preemption.py",
    "ebbtide_core/planning/tide/candidates.py",
    "ebbtide_core/planning/tide/evening_out.py",
    "ebbtide_core/planning/tide/foresight.py",
    "ebbtide_core/planning/tide/index.py",
    "ebbtide_core/planning/tide/kept_room.py",
    "ebbtide_core/planning/tide/prices.py",
    "ebbtide_core/planning/tide/queue.py",
    "ebbtide_core/planning/tide/room_rates.py",
    "ebbtide_core/planning/tide/turns.py",
    "ebbtide_core/planning/tide/victims.py",
    "ebbtide_core/reconcile.py",
    "ebbtide_core/resources/books.py",
    "ebbtide_core/resources/cache.py",
    "ebbtide_core/resources/came_back.py",
    "ebbtide_core/resources/elastic_jobs.py",
    "ebbtide_core/resources/gpu_selection.py",
    "ebbtide_core/resources/node_usage.py",
    "ebbtide_core/resources/placing.py",
    "ebbtide_core/resources/pools.py",
    "ebbtide_core/snapshot.py",
    "ebbtide_core/state.py",
    "ebbtide_core/views/accounts.py",
    "ebbtide_core/views/integral.py",
    "ebbtide_core/views/ledger.py",
    "ebbtide_sim/engine.py",
    "ebbtide_sim/eventlog.py",
    "ebbtide_sim/physics.py",
    "ebbtide_sim/sources.py",
)
"""What most of the time is spent in. Not among them, because it gains little or is read by reflection: the values and
events (dataclasses whose creation mypyc does not speed up), the tables of rules, and the policies, which are made from
the names of their options. A frozen dataclass of a compiled module cannot be copied, so there is none in what a
forecast copies."""


def compile_core(folder: Path, opt_level: str) -> None:
    """Copy the packages to ``folder``, and compile there; ``opt_level`` is the C compiler's."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    # The names of files that mypyc is given are those in tracebacks: relative to where the wheel is installed.
    os.chdir(folder)
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    # What is not compiled is checked by `make check`; its types are read here.
    options = ["--config-file=", "--follow-imports=silent"]
    extensions = mypycify(
        [*options, *COMPILED],
        opt_level=opt_level,
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir="build",
    )
    command = build_ext(Distribution({"name": GROUP, "ext_modules": extensions}))
    command.build_lib, command.build_temp = ".", "build"
    command.ensure_finalized()
    command.run()
    shutil.rmtree("build")
    shutil.rmtree(".mypy_cache", ignore_errors=True)


def main() -> None:
    """Compile into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--opt-level", default="3", help="of the C compiler, 0 to 3 (default: %(default)s)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    compile_core(given.folder.resolve(), given.opt_level)


if __name__ == "__main__":
    main()
