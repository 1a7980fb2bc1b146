"""A fake node observed while real processes come and go on it, on a clock that jumps; then replayed."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ebbtide_agent.gpu.backend import GpuBackend
from ebbtide_agent.gpu.opening import open_backend
from ebbtide_agent.jsonfile import write_json
from ebbtide_agent.observing import recording as recordings
from ebbtide_agent.observing.observe import ObservationPlan, observe
from ebbtide_agent.observing.recording import CannotRecord, Summary, opened, replay_command, state_path
from ebbtide_cli.main import main
from ebbtide_machine.process import Identity

GIB = 2**30
BEGAN = 1_800_000_000.0


@dataclass
class JumpingClock:
    """Time that passes at once, and what happens in it: at its hour each event is called, once."""

    events: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    stop_at: float = float("inf")
    at: float = BEGAN

    def now(self) -> float:
        return self.at

    def wait_until(self, at: float) -> bool:
        due = [event for event in self.events if BEGAN + event[0] <= at]
        for event in sorted(due, key=lambda event: event[0]):
            self.events.remove(event)
            event[1]()
        self.at = at
        return at < BEGAN + self.stop_at


class Node:
    """Fake GPUs, and processes that sleep on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "gpus"
        self.backend: GpuBackend = open_backend("4xRTX4090", self.folder, in_use=False)
        self.gpus = [gpu.uuid for gpu in self.backend.gpus()]
        self._sleepers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *gpus: int, gib: float = 4.0) -> int:
        sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        self._sleepers[sleeper.pid] = sleeper
        who = Identity.of(sleeper.pid)
        assert who is not None
        held = {self.gpus[gpu]: round(gib * GIB) for gpu in gpus}
        entry = {"pid": who.pid, "starttime": who.starttime, "gpus": held}
        write_json(self.folder / "processes" / f"{who.pid}.json", entry)
        return who.pid

    def end(self, pid: int) -> None:
        sleeper = self._sleepers.pop(pid)
        sleeper.kill()
        sleeper.wait()

    def close(self) -> None:
        for pid in list(self._sleepers):
            self.end(pid)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sleepers have this test for a parent, which would make ranks of one job of them."""
    monkeypatch.setattr("ebbtide_agent.observing.tracking.TOGETHER_S", -1.0)


def record(node: Node, path: Path, clock: JumpingClock, for_s: float | None = None, anonymous: bool = False) -> Summary:
    with opened(path, node.backend.gpus(), min_s=300.0, anonymous=anonymous) as recording:
        return observe(node.backend, recording, ObservationPlan(every_s=15.0, for_s=for_s), clock, lambda summary: None)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_recorded_hour_can_be_simulated(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.csv"
    pids: dict[str, int] = {}
    day: list[tuple[float, Callable[[], object]]] = [
        (30, lambda: pids.update(pair=node.start(0, 1, gib=10))),
        (30, lambda: pids.update(short=node.start(2))),
        (100, lambda: node.end(pids["short"])),
        (900, lambda: pids.update(late=node.start(3, gib=2))),
        (1800, lambda: node.end(pids["pair"])),
    ]
    summary = record(node, path, JumpingClock(day), for_s=3600)

    pair, late = rows(path)
    assert (pair["submit_s"], pair["runtime_s"], pair["gpus_max"]) == ("30.0", "1755.0", "2")
    assert (pair["gpu_mem_gib"], late["gpu_mem_gib"]) == ("10.000", "2.000")
    assert (late["submit_s"], late["runtime_s"], late["gpus_max"]) == ("900.0", "2700.0", "1")
    assert (summary.jobs, summary.running, summary.short, summary.users, summary.foreign) == (2, 1, 1, 1, 0)
    assert summary.gpu_hours == pytest.approx((2 * 1755 + 2700) / 3600)
    assert 0.2 < summary.in_use < 0.5

    command = replay_command(path, summary)
    assert command == f"ebb simulate --workload {path} --nodes 1x4 --gpu-mem 24GiB --policy fitgpp"
    assert main([*command.split()[1:], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"], report["finished"]) == (2, 2)
    assert report["flow_time_s"]["mean"] == pytest.approx((1755 + 2700) / 2)


def test_a_recording_that_was_interrupted_goes_on_with_the_jobs_that_still_run(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    node.start(0)
    first = record(node, path, JumpingClock(stop_at=600))
    assert [row["runtime_s"] for row in rows(path)] == ["585.0"]
    assert (first.jobs, first.running) == (1, 1)

    second = record(node, path, JumpingClock(at=BEGAN + 900, stop_at=1200))
    assert [(row["id"], row["submit_s"], row["runtime_s"]) for row in rows(path)] == [("1", "0.0", "1185.0")]
    assert (second.jobs, second.seconds) == (1, 1185.0)


def test_what_ended_while_nobody_looked_was_there_until_it_was_last_seen(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    pid = node.start(0)
    record(node, path, JumpingClock(stop_at=600))
    node.end(pid)
    summary = record(node, path, JumpingClock(at=BEGAN + 5000, stop_at=5100))
    assert [row["runtime_s"] for row in rows(path)] == ["585.0"]
    assert (summary.jobs, summary.running) == (1, 0)


def test_processes_of_another_boot_are_nobodys_of_now(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lab.csv"
    node.start(0)
    record(node, path, JumpingClock(stop_at=600))
    monkeypatch.setattr(recordings, "boot_id", lambda: "another")
    record(node, path, JumpingClock(at=BEGAN + 900, stop_at=1500))
    assert [(row["id"], row["submit_s"], row["runtime_s"]) for row in rows(path)] == [
        ("1", "0.0", "585.0"),
        ("2", "900.0", "585.0"),
    ]


def test_whoever_is_killed_between_the_two_files_leaves_no_job_twice(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    pid = node.start(0)
    record(node, path, JumpingClock(stop_at=600))
    before = state_path(path).read_text()
    node.end(pid)
    record(node, path, JumpingClock(at=BEGAN + 900, stop_at=915))
    state_path(path).write_text(before)  # the row is written, and that it is written is not
    record(node, path, JumpingClock(at=BEGAN + 1200, stop_at=1215))
    assert [row["id"] for row in rows(path)] == ["1"]


def test_the_file_holds_whole_rows_after_every_look(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    node.start(0)
    sizes: list[int] = []

    def check(summary: Summary) -> None:
        assert path.read_text().endswith("\n")
        assert len(rows(path)) == summary.jobs
        sizes.append(summary.jobs)

    with opened(path, node.backend.gpus(), min_s=300.0, anonymous=False) as recording:
        observe(node.backend, recording, ObservationPlan(15.0, 600.0), JumpingClock(), check)
    assert (sizes[0], sizes[-1], len(sizes)) == (0, 1, 41)


def test_an_anonymous_recording_names_nobody_on_disk_and_keeps_users_apart(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    node.start(0)
    record(node, path, JumpingClock(stop_at=600), anonymous=True)
    (row,) = rows(path)
    assert row["user"].startswith("user-")
    record(node, path, JumpingClock(at=BEGAN + 900, stop_at=1500))  # what was begun anonymously goes on so
    assert [each["user"] for each in rows(path)] == [row["user"]]


def test_a_recording_with_names_does_not_go_on_as_an_anonymous_one(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    node.start(0)
    record(node, path, JumpingClock(stop_at=600))
    before = path.read_text()
    with pytest.raises(CannotRecord, match="begun without --anonymous: choose another name"):
        record(node, path, JumpingClock(at=BEGAN + 900, stop_at=1500), anonymous=True)
    assert path.read_text() == before


def test_a_file_that_is_no_recording_is_left_alone(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    path.write_text("precious\n")
    with pytest.raises(CannotRecord, match="choose another name"), opened(path, (), 300.0, False):
        pass
    assert path.read_text() == "precious\n"


def test_two_cannot_record_into_one_file(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "lab.csv"
    refused = pytest.raises(CannotRecord, match="another process records into it")
    with opened(path, (), 300.0, False), refused, opened(path, (), 300.0, False):
        pass
    assert list(tmp_path.glob("lab.csv*")) == []
