"""No decision depends on what the wall clock says: who reads it is listed here, with what the time is for."""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TOLD = {
    # What is recorded or shown, and compared with nothing.
    "agent/ebbtide_agent/main.py": {"_announce"},
    "agent/ebbtide_agent/attempts/recovery.py": {"record_loss"},
    "agent/ebbtide_agent/supervisor/conclusion.py": {"conclude"},
    "agent/ebbtide_agent/supervisor/supervise.py": {"_supervise"},
    "agent/ebbtide_agent/supervisor/watch.py": {"_request_stop", "note_killed_by_agent"},
    "agent/ebbtide_agent/gpu_use/unused_sessions.py": {"_tell"},
    "agent/ebbtide_agent/gpu/faults.py": {"xid"},
    "agent/ebbtide_agent/gpu/fake_state.py": {"_look"},
    # When a log was how long, which people ask for by their clocks.
    "agent/ebbtide_agent/supervisor/streams/log_times.py": {"__init__"},
    # When the node ends, which clouds and batch systems say in the time of the wall.
    "agent/ebbtide_agent/node_end.py": {"_set", "_ask"},
    "agent/ebbtide_agent/pilot/pilot.py": {"run", "_reason_to_leave", "_left_s", "_emptied"},
    # Whether it is right.
    "agent/ebbtide_agent/doctor/machine.py": {"clock"},
    # How long a certificate is valid, which is said in dates.
    "agent/ebbtide_agent/link/credentials.py": {"_is_due", "_is_outdated"},
    # How old files of copies are that nobody uses.
    "agent/ebbtide_agent/files/snapshots.py": {"collect"},
    # Where the master's own clock begins, which from then on is monotonic, but that it goes back if it was ahead.
    "master/ebbtide_master/clock.py": {"__init__", "now"},
}
CHECKED = ("agent", "core")


def readers(tree: ast.AST) -> set[str]:
    """The functions in which the wall clock is read."""
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Attribute | ast.Name))
            names = {ast.unparse(node) for node in calls}
            if names & {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "CLOCK_REALTIME"}:
                found.add(function.name)
    return found


def test_who_reads_the_wall_clock_only_tells_of_it():
    files = [path for ring in CHECKED for path in sorted((REPOSITORY / ring).rglob("*.py"))]
    files.append(REPOSITORY / "master/ebbtide_master/clock.py")
    found = {str(path.relative_to(REPOSITORY)): readers(ast.parse(path.read_text())) for path in files}
    assert {path: names for path, names in found.items() if names} == TOLD


def test_the_scan_finds_a_reader():
    assert readers(ast.parse("def f():\n    return time.time() + 1")) == {"f"}
