"""What counts as use of a session, and when its node tells that there is none."""

import os

from ebbtide_agent.gpu.backend import GpuReading
from ebbtide_agent.gpu_use.unused_sessions import UnusedSessions

KEY = ("7", 1)


class World:
    """One session of this process's, a clock, and what was told of it."""

    def __init__(self, limit_s=3600.0):
        self.now, self.bytes, self.limit_s = 1000.0, 0, limit_s
        self.told, self.warnings = [], []
        self.pids = ()
        self.unused = UnusedSessions(self, self, lambda: self.now)
        self.look(0.0)

    def idle_limits(self):
        return {KEY: self.limit_s}

    def pids_of(self, job_id, attempt):
        return self.pids

    def gpus_of(self, job_id, attempt):
        return frozenset({"GPU-0"})

    def note_unused(self, job_id, attempt, since, left_s):
        self.told.append((since > 0, left_s))

    def bytes_of(self, job_id, attempt):
        return self.bytes

    def warn(self, job_id, attempt, words):
        self.warnings.append(words)

    def look(self, seconds, utilisation=0.0):
        self.now += seconds
        reading = GpuReading("GPU-0", mem_used_bytes=0, mem_total_bytes=1, utilisation=utilisation, processes=())
        self.unused.look({"GPU-0": reading}, {})


def test_it_is_warned_before_its_end_and_told_once_of_each():
    world = World()
    for _ in range(7):
        world.look(600.0)
        world.look(1.0)
    assert world.told == [(True, 596.0), (True, 0.0)]
    assert world.warnings == ["job 7 is unused: it is ended in 596 s unless it is used"]


def test_one_byte_or_a_busy_gpu_makes_it_used_again():
    world = World(limit_s=100.0)
    world.look(80.0)
    world.bytes += 1
    world.look(1.0)
    assert world.told == [(True, 20.0), (False, 0.0)]
    world.look(80.0)
    world.look(2.0, utilisation=0.5)
    world.look(60.0)
    assert world.told == [(True, 20.0), (False, 0.0), (True, 20.0), (False, 0.0)]


def test_a_busy_processor_is_use():
    world = World(limit_s=100.0)
    world.pids = (os.getpid(),)  # whose time until now counts as spent since the last look
    world.look(0.001)
    world.look(99.0)
    assert world.told == [(True, 1.0)]


def test_a_session_that_has_ended_is_forgotten():
    world = World(limit_s=100.0)
    world.idle_limits = dict
    world.look(500.0)
    del world.idle_limits
    world.look(1.0)
    assert world.told == []
