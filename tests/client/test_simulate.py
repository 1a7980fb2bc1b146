"""`ebb simulate`: what goes in, what comes out, and how it refuses what makes no sense."""

import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ebbtide_cli.verbs import simulate as verb
from ebbtide_cli.verbs.simulate import _print_experiment
from ebbtide_sim import draw, experiments
from ebbtide_sim.experiments import Check, ExperimentReport

from tests.client.runs import start_ebb

HEADER = "id,submit_s,runtime_s,class,gpus_min,gpus_max,grace_s"
JOBS = [HEADER, "long,0,3600,be,4,4,30", "trial,60,300,te,1,1,0", "wide,120,600,be,2,4,10"]


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(JOBS) + "\n")
    return str(path)


def test_json_has_every_measure(ebb, jobs):
    result = ebb("simulate", "--workload", jobs, "--nodes", "1x4", "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert set(report) >= {
        "policy", "jobs", "finished", "makespan_s", "utilisation", "busy", "flow_time_s", "stretch", "slowdown",
        "preemptions", "preempted_jobs", "preemptions_per_job_max", "resizes", "reschedule_interval_s",
        "wasted_gpu_s", "dropped", "skipped", "sim_wall_s", "events",
    }  # fmt: skip
    assert set(report["flow_time_s"]) == {"mean", "p50", "p95", "p99", "max"}
    assert set(report["slowdown"]) == {"te", "be", "all"}
    assert (report["jobs"], report["finished"], report["preemptions"]) == (3, 3, 1)


def test_the_event_log_tells_the_same_story_and_leaves_nothing_else(ebb, jobs, tmp_path):
    log = tmp_path / "out.jsonl"
    assert ebb("simulate", "--workload", jobs, "--nodes", "1x4", "--events", str(log), "--json").code == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(set(line) == {"t", "event", "job", "gpus", "cpus", "mem_gib"} for line in lines)
    assert [line["event"] for line in lines if line["job"] == "long"][:4] == ["submit", "start", "preempt", "suspend"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.csv", "out.jsonl"]


def test_the_same_command_gives_the_same_log(ebb, tmp_path):
    logs = []
    for name in ("a", "b"):
        log = tmp_path / name
        ebb(
            "simulate", "--jobs-limit", "200", "--nodes", "1x4", "--policy", "rand", "--seed", "7", "--events", str(log)
        )
        logs.append(log.read_bytes())
    assert logs[0] == logs[1] != b""


def test_a_table_for_people_has_notes_on_what_was_assumed(ebb):
    result = ebb("simulate", "--jobs-limit", "20", "--nodes", "1x8")
    assert result.code == 0
    assert "MAKESPAN" in result.out
    assert "Note: " in result.out


def test_elastic_bounds_concern_elastic_policies_only(ebb, jobs):
    def makespan(policy: str, *more: str) -> float:
        options = ("simulate", "--workload", jobs, "--nodes", "1x4", "--policy", policy, "--json", *more)
        return json.loads(ebb(*options).out)["makespan_s"]

    assert makespan("rigid-fcfs", "--elastic", "1-4") == makespan("rigid-fcfs")
    assert makespan("moldable-equipartition", "--elastic", "1-4") != makespan("rigid-fcfs")


def test_a_picture_is_drawn(ebb, jobs, tmp_path):
    picture = tmp_path / "run.png"
    assert ebb("simulate", "--workload", jobs, "--nodes", "1x4", "--plot", str(picture)).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_a_kind_that_cannot_be_drawn_is_a_png(ebb, jobs, tmp_path):
    picture = tmp_path / "slowdown"
    assert ebb("simulate", "--workload", jobs, "--nodes", "1x4", "--plot", str(picture)).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


UNDRAWABLE = {
    "one simulation": ([], "/nonexistent/x.png", "/nonexistent/x.png: cannot be written"),
    "a sweep": (["--sweep", "seed=0,1"], "/nonexistent/x.png", "/nonexistent/x.png: cannot be written"),
    "a sweep of no figure": (["--sweep", "seed=0,1", "--metric", "slowdown.x"], "x.png", "--metric: 'slowdown.x'"),
    "an experiment": (["determined"], "/nonexistent/x.png", "/nonexistent/x.png: cannot be written"),
}


@pytest.mark.parametrize("case", UNDRAWABLE)
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_runs(ebb, tmp_path, monkeypatch, case):
    def never(*_):
        raise AssertionError("it ran")

    monkeypatch.setattr(verb, "_run", never)
    monkeypatch.setattr(verb, "_engine", lambda *_: never)
    monkeypatch.setattr(experiments, "load_experiment", never)
    monkeypatch.chdir(tmp_path)
    arguments, picture, words = UNDRAWABLE[case]
    result = ebb("simulate", *arguments, "--plot", picture)
    assert (result.code, result.out, list(tmp_path.iterdir())) == (2, "", [])
    assert words in result.err


@pytest.mark.parametrize("more", [[], ["--sweep", "seed=0,1"]])
def test_what_was_simulated_is_printed_though_its_picture_fails(ebb, jobs, tmp_path, monkeypatch, more):
    def fails(*_):
        raise OSError(28, "No space left on device", "x.png")

    monkeypatch.setattr(draw, "drawn", fails)
    result = ebb("simulate", "--workload", jobs, "--nodes", "1x4", "--plot", str(tmp_path / "x.png"), *more)
    assert (result.code, result.err) == (1, "ebb: x.png: No space left on device\n")
    assert "MAKESPAN" in result.out


def test_an_experiment_draws_only_where_it_is_told_to(ebb, tmp_path, monkeypatch):
    report = ExperimentReport(
        name="x", rows=(), checks=(), assumptions=(), draw=lambda path: path.write_text("drawn")
    )  # fmt: skip
    monkeypatch.setattr(experiments, "load_experiment", lambda name: SimpleNamespace(run=lambda *_: report))
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "determined.png"
    mine.write_text("mine")
    assert (ebb("simulate", "determined").code, mine.read_text()) == (0, "mine")
    assert (ebb("simulate", "determined", "--plot", mine.name).code, mine.read_text()) == (0, "drawn")


class TestSweeps:
    def test_every_combination_is_as_if_it_had_been_run_alone(self, ebb, jobs):
        common = ("simulate", "--workload", jobs, "--nodes", "1x4", "--json")
        swept = json.loads(ebb(*common, "--sweep", "policy=fitgpp,fifo", "--sweep", "seed=0,1").out)
        assert [entry["parameters"] for entry in swept] == [
            {"policy": "fitgpp", "seed": "0"}, {"policy": "fitgpp", "seed": "1"},
            {"policy": "fifo", "seed": "0"}, {"policy": "fifo", "seed": "1"},
        ]  # fmt: skip
        alone = json.loads(ebb(*common, "--policy", "fifo").out)
        for report in (alone, swept[2]["report"]):
            del report["sim_wall_s"]
        assert swept[2]["report"] == alone

    def test_an_option_that_a_policy_lacks_is_said_once_and_run_once(self, ebb, jobs):
        result = ebb("simulate", "--workload", jobs, "--sweep", "policy=fitgpp,fifo", "--sweep", "s=0,4", "--json")
        assert [entry["parameters"] for entry in json.loads(result.out)] == [
            {"policy": "fitgpp", "s": "0"}, {"policy": "fitgpp", "s": "4"}, {"policy": "fifo"},
        ]  # fmt: skip
        assert result.err.count("fifo has no option s") == 1

    def test_the_plot_shows_the_metric_that_was_asked_for(self, ebb, jobs, tmp_path):
        picture = tmp_path / "sweep.png"
        options = ("simulate", "--workload", jobs, "--sweep", "policy=fitgpp,fifo", "--plot", str(picture))
        assert ebb(*options, "--metric", "slowdown.te.p95").code == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()
        result = ebb(*options, "--metric", "slowdown.nonsense")
        assert (result.code, list(picture.parent.glob("*.png"))) == (2, [])
        assert "--metric: 'slowdown.nonsense'" in result.err

    def test_an_interrupted_sweep_leaves_no_process_and_no_file(self, home, tmp_path):
        picture = tmp_path / "never.png"
        with start_ebb(
            "simulate", "--jobs-limit", "20000", "--sweep", "seed=0,1,2,3", "--jobs", "2", "--plot", str(picture)
        ) as process:
            while not (workers := children(process.pid)):
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert list(tmp_path.iterdir()) == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


BAD = {
    "an unknown policy": (["--policy", "nope"], "--policy: 'nope' is none of"),
    "an unknown option": (["--policy-option", "x=1"], "--policy-option: fitgpp has no 'x'"),
    "a bad option": (["--policy-option", "s=high"], "--policy-option: s takes a number, not 'high'"),
    "no such workload": (["--workload", "nothing"], "nothing: neither a file nor one of"),
    "more jobs than there may be": (["--jobs-limit", "5000000"], "--jobs-limit: 5000000 is not between 1 and 4194304"),
    "no nodes": (["--nodes", "0x8"], "--nodes: 0x8 is not within 1 to"),
    "nodes that are none": (["--nodes", "eight"], "--nodes: 'eight' is not NODESxGPUS"),
    "elastic bounds upside down": (["--elastic", "4-1"], "--elastic: --gpus: 4-1 is not a range"),
    "elastic nonsense": (["--elastic", "1/0-2"], "--elastic: '1/0-2' is not MIN-MAX GPUs"),
    "a speed-up that is none": (["--speedup", "magic"], "magic: neither a file nor one of"),
    "no cluster file": (["--cluster", "missing.csv"], "missing.csv"),
    "a time without a unit": (["--restart-cost", "5"], "'5' is not a duration with units"),
    "--full without an experiment": (["--full"], "--full: is for the named experiments"),
    "dask without a scheduler": (["--sweep", "seed=0,1", "--engine", "dask"], "--scheduler: is needed"),
    "a scheduler without dask": (["--sweep", "seed=0,1", "--scheduler", "h:1"], "--scheduler: is for --engine dask"),
    "a sweep of nothing": (["--sweep", "policy"], "'policy' is not NAME=VALUE,VALUE"),
    "a sweep of an unknown name": (["--sweep", "colour=red"], "--sweep: 'colour' is no option of fitgpp"),
    "a sweep of an unknown policy": (["--sweep", "policy=fifo,nope"], "--sweep: policy 'nope' is none of"),
    "a sweep with an event log": (["--sweep", "seed=0,1", "--events", "x.jsonl"], "--events: is for one simulation"),
    "a file that cannot be written": (["--events", "/nonexistent/x.jsonl"], "/nonexistent/x.jsonl: cannot be written"),
    "an unknown experiment": (["nonsense"], "'nonsense' is none of"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_refused_in_one_line(ebb, case):
    arguments, message = BAD[case]
    result = ebb("simulate", "--jobs-limit", "5", *arguments)
    assert result.code == 2
    assert message in result.err
    assert (result.out, result.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fitgpp", "--policy", "tide", "--nodes", "2x8", "--seed", "1", "--events", "out.jsonl"],
            "--nodes, --policy, --events: are not for a named experiment: did you mean '--workload fitgpp'?",
        ),
        (["determined", "--offline"], "--offline: is not for a named experiment"),
    ],
)
def test_what_an_experiment_does_not_take_is_refused_with_what_may_have_been_meant(ebb, arguments, message):
    result = ebb("simulate", *arguments)
    assert (result.code, result.out, result.err) == (2, "", f"ebb: {message}\n")


LINES = {
    "negative run time": ("a,0,-1,be,1,1,0", "runtime_s"),
    "least above most": ("a,0,1,be,4,1,0", "gpus_min"),
    "not a number": ("a,x,1,be,1,1,0", "submit_s"),
    "no such class": ("a,0,1,zz,1,1,0", "class"),
    "a fraction that is none": ("a,0,1,be,2/3,1,0", "gpus_min"),
    "a cell too few": ("a,0,1,be,1,1", ":3"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_bad_line_is_named_by_file_and_number(ebb, tmp_path, case):
    line, field = LINES[case]
    path = tmp_path / "bad.csv"
    path.write_text("\n".join([HEADER, "ok,0,1,be,1,1,0", line]) + "\n")
    result = ebb("simulate", "--workload", str(path))
    assert result.code == 2
    assert f"{path}:3" in result.err
    assert field in result.err
    assert result.err.count("\n") == 1


def test_all_tables_of_an_experiment_are_printed_under_their_titles(capsys):
    rows = ({"strategy": "wait", "cost": 1.23456},)
    report = ExperimentReport(
        name="x", rows=rows, checks=(Check("holds", False, "1 of 2"),), assumptions=("luck",), draw=lambda path: None,
        tables={"With luck": ({"seed": 7, "cost": None},)},
    )  # fmt: skip
    _print_experiment(report)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[:5] == [["STRATEGY", "COST"], ["wait", "1.235"], ["With", "luck:"], ["SEED", "COST"], ["7", "-"]]
    assert lines[5] == ["✗", "holds:", "1", "of", "2"]


# --- borrowed nodes ---

SUPPLY = """
[supply.hpc]
max_nodes = 2
gpus_per_node = 4
time = "1h"
[supply.hpc.assumed]
queue = ["1m", "10m"]
preempted_after = "6h"
notice = "20s"
price = 2.5
"""


@pytest.fixture
def supply(tmp_path: Path) -> str:
    path = tmp_path / "supply.toml"
    path.write_text(SUPPLY)
    return str(path)


def test_what_is_borrowed_is_in_the_report_with_its_cost(ebb, jobs, supply):
    result = ebb("simulate", "--workload", jobs, "--nodes", "0", "--supply", supply, "--json")
    report = json.loads(result.out)
    assert report["finished"] == 3
    borrowed = report["supply"]
    assert set(borrowed) == {"loans", "preempted", "moves", "queue_s", "gpu_hours", "idle_gpu_hours", "cost"}
    assert borrowed["cost"] == pytest.approx(2.5 * borrowed["gpu_hours"])
    assert borrowed["loans"] > 0
    assert ebb("simulate", "--workload", jobs, "--nodes", "2x4", "--json").json.get("supply") is None


def test_settings_of_a_supply_are_compared_by_what_they_cost(ebb, jobs, supply, tmp_path):
    options = ("--workload", jobs, "--nodes", "1x4", "--supply", f"{supply}:hpc", "--metric", "waiting_s.p95")
    picture = tmp_path / "cost.png"
    result = ebb("simulate", *options, "--sweep", "idle=1m,10m", "--sweep", "after=0s,5m", "--plot", str(picture))
    assert result.code == 0
    assert "GPU HOURS" in result.out
    assert "COST" in result.out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            '[supply.other]\nmax_nodes = 1\ngpus_per_node = 1\ntime = "1h"',
            "has hpc, other: name one of them, as FILE:NAME",
        ),
        ("qeue = '1m'", "[supply.hpc.assumed] qeue: there is no such field: did you mean 'queue'?"),
    ],
)
def test_a_supply_that_is_not_clear_is_refused(ebb, jobs, supply, more, words):
    Path(supply).write_text(SUPPLY + more)
    result = ebb("simulate", "--workload", jobs, "--supply", supply)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("queue = 5", 'queue: 5 is neither a duration, such as "10m", nor a list of them'),
        ("queue = ['5']", "queue: '5' is not a duration with units"),
        ("queue = []", "queue: is not one time or more"),
        ("price = '2'", "price: '2' is not a number"),
        ("price = -2", "price: is not at least 0"),
        ("notice = '0s'", "notice: is not at least 1s"),
        ("preempted_after = '0s'", "preempted_after: is not above 0s"),
    ],
)
def test_what_is_assumed_of_a_lender_is_checked(ebb, jobs, supply, line, words):
    Path(supply).write_text(SUPPLY.partition("queue")[0] + line)
    result = ebb("simulate", "--workload", jobs, "--supply", supply)
    assert (result.code, result.out) == (2, "")
    assert f"[supply.hpc.assumed] {words}" in result.err


def test_a_file_that_is_not_there_is_named(ebb, jobs):
    result = ebb("simulate", "--workload", jobs, "--supply", "nowhere.toml")
    assert (result.code, "nowhere.toml" in result.err) == (2, True)
