"""Whose process is it: by descent while it lives, by memory after that."""

from ebbtide_agent.attribution import Attribution
from ebbtide_agent.procfs import ProcessStat

JOB = ("17", 2)


class Processes:
    """A process table that a test edits."""

    def __init__(self) -> None:
        self.table: dict[int, ProcessStat] = {}
        self.attempts: dict[tuple[str, int], tuple[int, ...]] = {}
        self.attribution = Attribution(lambda: self.attempts, self.table.get)
        self.start(1, parent=0)

    def start(self, pid: int, parent: int, starttime: int = 100, alive: bool = True) -> None:
        self.table[pid] = ProcessStat(pid, starttime, parent, "python", alive, 0.0)

    def owners(self, *pids: int) -> dict[int, tuple[str, int]]:
        return self.attribution.owners(frozenset(pids))


def test_the_attempts_own_processes_and_their_descendants_belong_to_it():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.start(11, parent=10)
    processes.start(12, parent=11)
    assert processes.owners(10, 12) == {10: JOB, 12: JOB}


def test_a_process_of_somebody_else_is_foreign():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.start(20, parent=1)
    assert processes.owners(10, 20) == {10: JOB}


def test_a_process_stays_the_attempts_when_its_parent_is_gone():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.start(11, parent=10)
    processes.owners(11)
    del processes.table[10]
    processes.attempts = {}
    processes.start(11, parent=1)
    assert processes.owners(11) == {11: JOB}


def test_a_process_that_ended_but_is_still_listed_stays_the_attempts():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.owners(10)
    processes.attempts = {}
    del processes.table[10]
    assert processes.owners(10) == {10: JOB}
    processes.start(10, parent=1, alive=False)
    assert processes.owners(10) == {10: JOB}


def test_a_new_process_with_an_old_pid_is_not_the_attempts():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.owners(10)
    processes.attempts = {}
    processes.start(10, parent=1, starttime=200)
    assert processes.owners(10) == {}


def test_what_no_gpu_lists_any_more_is_forgotten():
    processes = Processes()
    processes.attempts = {JOB: (10,)}
    processes.start(10, parent=1)
    processes.owners(10)
    processes.attribution.keep_only(frozenset())
    processes.attempts = {}
    assert processes.owners(10) == {}


def test_a_process_table_that_changes_underfoot_ends_in_an_answer():
    processes = Processes()
    processes.start(10, parent=11)
    processes.start(11, parent=10)
    assert processes.owners(10, 99) == {}
