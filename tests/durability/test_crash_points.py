"""A kill at every write, sync, rename and removal: whatever was promised before is there, and what is there is whole.

In `make test` some of the points are tried, in `make test-all` all of them.
"""

import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from ebbtide import checkpoints
from ebbtide_agent.jsonfile import read_json
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind

from tests.durability.traced import kill_at, run

HERE = Path(__file__).parent
pytestmark = pytest.mark.strace
Check = Callable[[Path, list[str]], None]


def points(program: str, calls: str, folder: Path, step: int) -> Iterator[tuple[Path, list[str]]]:
    """Kill the program at every ``step``-th of its ``calls``; where it wrote, and what it had promised."""
    for number in count(1, step):
        home = folder / f"{calls.replace(',', '-')}-{number}"
        home.mkdir()
        code, promised = run(
            HERE / program, home / "journal.db" if "journal" in program else home, before=kill_at(calls, number)
        )
        yield home, promised
        if code != -signal.SIGKILL:
            assert code == 0
            assert number > step, f"it makes no {calls}"
            return


def check_journal(home: Path, promised: list[str]) -> None:
    for name in ("journal.db", "vault.db"):
        if (home / name).exists():
            with closing(sqlite3.connect(home / name)) as db:
                assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with closing(SqliteStore(home / "journal.db")) as store:
        lines = list(store.events())
        jobs = [int(word.split()[1]) for word in promised if word.startswith("job")]
        assert [line.sequence for line in lines] == list(range(1, len(lines) + 1))
        assert len(lines) % 2 == 0, "half of a batch is there"
        assert len(lines) in (2 * len(jobs), 2 * len(jobs) + 2)
        environments = {int(key) for key in store.vault.read(EntryKind.ENVIRONMENT)}
        assert {job for job in jobs if job > max(jobs) - 2} <= environments
        assert store.next_epoch() >= 1 + any(word.startswith("epoch") for word in promised)


def check_exit(home: Path, promised: list[str]) -> None:
    found = read_json(home / "exit.json")
    codes = [None, 1, 2]
    seen = codes.index(int(promised[-1])) if promised else 0
    assert (None if found is None else found["exit_code"]) in codes[seen : seen + 2]


def check_checkpoints(home: Path, promised: list[str]) -> None:
    found, steps = checkpoints.newest_valid(home), [0, 10, 20, 30, 40]
    seen = steps.index(int(promised[-1])) if promised else 0
    assert (0 if found is None or found.step is None else found.step) in steps[seen : seen + 2]
    if seen > 1:
        before = checkpoints.newest_valid(home, before_attempt=2)
        assert before is not None or seen == 4


CASES = [
    ("writes_journal.py", "pwrite64", 29, check_journal),
    ("writes_journal.py", "fdatasync,fsync", 17, check_journal),
    ("writes_journal.py", "unlink,rename,ftruncate", 4, check_journal),
    ("writes_exit.py", "write,fsync", 3, check_exit),
    ("writes_exit.py", "rename", 1, check_exit),
    ("writes_checkpoints.py", "fsync,fdatasync", 11, check_checkpoints),
    ("writes_checkpoints.py", "rename,unlink,unlinkat,rmdir", 5, check_checkpoints),
]
NAMES = [f"{program} {calls}" for program, calls, *_ in CASES]


@pytest.mark.parametrize(("program", "calls", "step", "check"), CASES[1::3], ids=NAMES[1::3])
def test_a_kill_at_some_points_costs_nothing_that_was_promised(
    program: str, calls: str, step: int, check: Check, tmp_path: Path
) -> None:
    for home, promised in points(program, calls, tmp_path, step):
        check(home, promised)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("program", "calls", "step", "check"), CASES, ids=NAMES)
def test_a_kill_at_any_point_costs_nothing_that_was_promised(
    program: str, calls: str, step: int, check: Check, tmp_path: Path
) -> None:
    crashes = 0
    for crashes, (home, promised) in enumerate(points(program, calls, tmp_path, 1)):  # noqa: B007
        check(home, promised)
    print(f"{program}: {crashes} crash points at {calls}")
