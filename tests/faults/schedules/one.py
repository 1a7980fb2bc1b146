"""One schedule from its seed."""

import asyncio
import traceback
from dataclasses import dataclass

from tests.faults.schedules.virtual import VirtualLoop, settled
from tests.faults.schedules.world import World, simulated


@dataclass(frozen=True)
class Outcome:
    """What came of it; ``failure`` is empty if every promise held."""

    seed: int
    failure: str
    faults: int
    launches: int
    simulated_s: float


def play(seed: int) -> Outcome:
    """Play the schedule of ``seed``."""
    world, failure = World(seed), ""
    loop = VirtualLoop()
    try:
        with simulated(world) as folder:
            loop.run_until_complete(world.run(folder))
    except Exception:  # noqa: BLE001 (whatever it is, it is what came of this seed)
        failure = traceback.format_exc() + "\n".join(world.faults)
    finally:
        loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(settled([task for task in asyncio.all_tasks(loop) if task.cancel()]))
        loop.close()
    return Outcome(seed, failure, len(world.faults), world.truth.launches, loop.now)
