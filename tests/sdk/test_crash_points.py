"""Whatever goes wrong while a checkpoint is written: the newest valid one is used, and none that is needed is gone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BEFORE = [[2, 10], [2, 9], [2, 8], [1, None]]  # attempt and step, newest first
KEPT = 2

Facts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def crash_points(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Facts]:
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"], check=True)

    def run(kind: str, *hows: str) -> Facts:
        program = [sys.executable, HERE / "crash_points.py", kind, *hows]
        environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


OUTCOMES = {
    "crash": {"killed", "finished"},  # dies before the operation
    "torn": {"killed", "finished"},  # dies in the middle of it
    "broken": {"failed", "saved", "finished"},  # the operation fails, and no other does
    "full": {"failed", "saved", "finished"},  # all that need room fail from then on
    "too large": {"failed", "finished"},  # no file may have more than so many bytes (RLIMIT_FSIZE)
}


@pytest.mark.parametrize(
    ("kind", "hows"),
    [("plain", OUTCOMES), pytest.param("torch", ["torn", "too large"], marks=pytest.mark.slow)],
)
def test_a_save_that_goes_wrong_at_any_file_operation_costs_no_checkpoint(
    crash_points: Callable[..., Facts], kind: str, hows: Iterable[str]
) -> None:
    """Every write, rename, fsync, unlink, mkdir and truncation of a save and of the removals after it."""
    facts = crash_points(kind, *hows)
    for how in hows:
        mine = [fact for fact in facts if fact["how"] == how]
        assert len(mine) > 30 or (how == "too large" and len(mine) > 3)
        assert {fact["outcome"] for fact in mine} == OUTCOMES[how]
        for number, fact in enumerate(mine, start=1):
            new = [step for step in ([3, 30], [3, 20]) if step in fact["valid"]]
            assert fact["valid"][:KEPT] == [*new, *BEFORE][:KEPT], (how, number, fact)
            assert new or fact["outcome"] == "killed", (how, number, fact)
            assert new[:1] == [[3, 30]] or fact["outcome"] != "failed", "the save after the failed one worked"
            assert fact["later"] == [[4, 40], fact["valid"][0]], (how, number, fact)
            assert fact["drafts_later"] == 0, (how, number, fact)
            if how in ("full", "too large"):
                assert fact["drafts"] == 0, "what did not fit makes room again"
        if how == "too large":
            continue
        out = [fact["valid"][0] != BEFORE[0] for fact in mine]
        assert out == sorted(out), "once the new checkpoint is out, nothing takes it back"


def test_a_seal_that_goes_wrong_at_any_file_operation_is_made_good_by_the_next(
    crash_points: Callable[..., Facts],
) -> None:
    facts = crash_points("seal", *OUTCOMES)
    assert {fact["how"] for fact in facts} == set(OUTCOMES)
    assert len(facts) > 30
    for fact in facts:
        assert fact["valid"] in (BEFORE, [[3, None], *BEFORE]), fact
        assert fact["valid"][0] == [3, None] or fact["outcome"] == "killed"
        assert fact["later"] == [[4, 40], [3, None]]
