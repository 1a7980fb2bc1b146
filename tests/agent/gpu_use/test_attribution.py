"""Whose process is it: by group, descent or environment while it lives, by memory after that."""

import asyncio
import os
import threading
from pathlib import Path

from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.procfs import ProcessStat

JOB = ("17", 2)


class Processes:
    """A process table that a test edits."""

    def __init__(self) -> None:
        self.table: dict[int, ProcessStat] = {}
        self.attempts: dict[tuple[str, int], tuple[int, ...]] = {}
        self.groups: dict[Path, tuple[str, int]] = {}
        self.group_of: dict[int, Path] = {}
        self.environments: dict[int, tuple[str, int]] = {}
        self.looked_into: list[frozenset[int]] = []
        self.attribution = Attribution(
            lambda: self.attempts, self.table.get, lambda: self.groups, self.look_into, self.group_of.get
        )
        self.start(1, parent=0)

    def start(self, pid: int, parent: int, starttime: int = 100, alive: bool = True, **more: object) -> None:
        self.table[pid] = ProcessStat(pid, starttime, parent, more.pop("command", "python"), alive, 0.0, **more)

    def look_into(self, pids: frozenset[int]) -> dict[int, tuple[str, int]]:
        self.looked_into.append(pids)
        return {pid: owner for pid, owner in self.environments.items() if pid in pids}

    async def owners(self, *pids: int) -> dict[int, tuple[str, int]]:
        return await self.attribution.owners(frozenset(pids))


async def test_the_attempts_own_processes_and_their_descendants_belong_to_it():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.start(11, parent=10)
    processes.start(12, parent=11)
    assert await processes.owners(10, 12) == {10: JOB, 12: JOB}


async def test_a_process_of_somebody_else_is_foreign():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.start(20, parent=1)
    assert await processes.owners(10, 20) == {10: JOB}


async def test_a_process_stays_the_attempts_when_its_parent_is_gone():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.start(11, parent=10)
    await processes.owners(11)
    del processes.table[10]
    processes.attempts = {}
    processes.start(11, parent=1)
    assert await processes.owners(11) == {11: JOB}


async def test_a_process_that_ended_but_is_still_listed_stays_the_attempts():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    await processes.owners(10)
    processes.attempts = {}
    del processes.table[10]
    assert await processes.owners(10) == {10: JOB}
    processes.start(10, parent=1, alive=False)
    assert await processes.owners(10) == {10: JOB}


async def test_a_new_process_with_an_old_pid_is_not_the_attempts():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    await processes.owners(10)
    processes.attempts = {}
    processes.start(10, parent=1, starttime=200)
    assert await processes.owners(10) == {}


async def test_what_no_gpu_lists_any_more_is_forgotten():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    await processes.owners(10)
    processes.attribution.keep_only(frozenset())
    processes.attempts = {}
    assert await processes.owners(10) == {}


async def test_a_process_table_that_changes_underfoot_ends_in_an_answer():
    processes = Processes()
    processes.start(10, parent=11)
    processes.start(11, parent=10)
    assert await processes.owners(10, 99) == {}


async def test_a_process_in_the_attempts_control_group_is_its_whoever_its_parents_are():
    processes = Processes()
    processes.groups = {Path("/sys/fs/cgroup/agent/17.2"): JOB}
    processes.group_of[30] = Path("/sys/fs/cgroup/agent/17.2/below")
    processes.group_of[31] = Path("/sys/fs/cgroup/agent/18.1")
    processes.start(30, parent=1)
    processes.start(31, parent=1)
    assert await processes.owners(30, 31) == {30: JOB}


async def test_the_control_group_counts_more_than_descent():
    processes = Processes()
    processes.attempts = {("18", 1): (10,)}
    processes.groups = {Path("/g/17.2"): JOB}
    processes.group_of[11] = Path("/g/17.2")
    processes.start(10, parent=1)
    processes.start(11, parent=10)
    assert await processes.owners(11) == {11: JOB}


async def test_a_process_that_left_its_tree_is_known_by_the_jobs_socket_in_its_environment():
    processes = Processes()
    processes.environments = {40: JOB}
    processes.start(40, parent=1)
    assert await processes.owners(40) == {40: JOB}
    assert processes.attribution.living(JOB, frozenset({40})) == []  # there is no such process in this machine's table
    processes.environments = {}
    assert await processes.owners(40) == {40: JOB}


async def test_a_foreign_process_is_looked_into_once_until_it_runs_another_program():
    processes = Processes()
    processes.start(50, parent=1)
    for _ in range(3):
        assert await processes.owners(50) == {}
    assert len(processes.looked_into) == 1
    processes.start(50, parent=1, command="train")
    processes.environments = {50: JOB}
    assert await processes.owners(50) == {50: JOB}


async def test_a_process_that_sleeps_in_the_kernel_is_asked_again(monkeypatch):
    monkeypatch.setattr(procfs, "owner_uid", lambda pid: os.geteuid())  # whoever has that pid on this machine
    processes = Processes()
    processes.start(50, parent=1, in_kernel=True)
    await processes.owners(50)
    processes.environments = {50: JOB}
    processes.start(50, parent=1)
    assert await processes.owners(50) == {50: JOB}


async def test_a_look_that_does_not_come_back_holds_up_nobody_and_is_not_made_twice(monkeypatch):
    monkeypatch.setattr("ebbtide_agent.gpu_use.attribution._ENVIRONMENT_S", 0.02)
    stuck, looks = threading.Event(), []

    def look(pids):
        looks.append(pids)
        stuck.wait(60)
        return {}

    attribution = Attribution(dict, environments=look)
    assert await attribution.owners(frozenset({os.getpid()})) == {}
    assert await attribution.owners(frozenset({os.getpid()})) == {}
    while not looks:  # its thread may be late
        await asyncio.sleep(0.001)
    stuck.set()
    assert len(looks) == 1


async def test_only_a_living_process_of_the_attempt_is_named_for_its_end():
    attribution = Attribution(lambda: {JOB: (os.getpid(),)})
    await attribution.owners(frozenset({os.getpid(), 1}))
    assert [process.pid for process in attribution.living(JOB, frozenset({os.getpid(), 1}))] == [os.getpid()]
    assert attribution.living(JOB, frozenset({1})) == []
    assert attribution.living(("18", 1), frozenset({os.getpid()})) == []
