"""The other side of `simulator_speed.py`: AccaSim 1.1.3 with FIFO and first fit, in an interpreter that has it.

Usage: PYTHON accasim_fifo.py TRACE.swf NODES CORES. Prints the seconds that the simulation took, and the jobs it ran.
AccaSim was written for an older Python and numpy: the two names that it misses are put back before it is imported.
"""

import collections
import collections.abc
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path


def main(trace: str, nodes: int, cores: int) -> None:
    """Run it once."""
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    import numpy

    numpy.int = int  # type: ignore[attr-defined]
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        config = Path("system.json")
        config.write_text(
            json.dumps(
                {
                    "groups": {"node": {"core": cores, "mem": 1}},
                    "resources": {"node": nodes},
                    "equivalence": {"processor": {"core": 1}},
                    "start_time": 0,
                }
            )
        )
        simulator = Simulator(
            trace,
            str(config),
            FirstInFirstOut(FirstFit()),
            RESULTS_FOLDER_NAME=folder,  # absolute: else it is put beside this script
            scheduling_output=False,
            pprint_output=False,
            benchmark_output=False,
            statistics_output=False,
            show_statistics=False,
        )
        logging.disable()
        began, busy = time.perf_counter(), time.process_time()
        simulator.start_simulation()
        took = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - busy}
        print(json.dumps(took | {"jobs": simulator.loaded_jobs, "run": simulator.dispatched_jobs}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
