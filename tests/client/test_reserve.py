"""`ebb reserve`: how long to ask for."""

import json
import sqlite3

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.codec import encode
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import Allocation, JobId, NodeAllocation, NodeId


def test_json_has_the_sequence_and_what_it_costs(ebb):
    result = ebb("reserve", "--dist", "exponential:1", "--strategy", "mean-doubling", "--json")
    facts = json.loads(result.out)
    assert set(facts) == {"sequence", "expected_cost", "normalised_cost", "monte_carlo"}
    assert facts["sequence"][:4] == [1, 2, 4, 8]
    assert facts["expected_cost"] == pytest.approx(2.429, abs=1e-3)
    assert facts["monte_carlo"]["mean"] == pytest.approx(2.429, abs=5 * facts["monte_carlo"]["stderr"])


def test_the_cost_is_exact_and_does_not_depend_on_the_seed(ebb):
    costs = [
        json.loads(ebb("reserve", "--dist", "uniform:10,20", "--seed", seed, "--json").out)["expected_cost"]
        for seed in ("1", "2")
    ]
    assert costs == [20.0, 20.0]


def test_earlier_runs_can_come_from_a_file(ebb, tmp_path):
    path = tmp_path / "runs"
    path.write_text("# seconds\n10\n10\n\n10\n100\n")
    facts = json.loads(ebb("reserve", "--dist", f"history:{path}", "--json").out)
    assert facts["sequence"] == [10, 100]
    assert facts["expected_cost"] == 10 + 100 / 4


def test_people_read_a_sentence(ebb):
    result = ebb("reserve", "--dist", "uniform:10,20", "--strategy", "mean-by-mean")
    assert result.out.startswith("Ask for 15, 17.5")
    assert "times the cost with a known run time" in result.out


BAD = {
    "no such distribution": (["--dist", "cauchy:1"], "--dist: 'cauchy' is none of exponential"),
    "too few numbers": (["--dist", "gamma:2"], "--dist: 'gamma:2' is not gamma:SHAPE,RATE"),
    "not a number": (["--dist", "gamma:2,x"], "--dist: 'gamma:2,x' is not gamma:SHAPE,RATE"),
    "a negative rate": (["--dist", "exponential:-1"], "--dist: rate is -1, it must be a number above 0"),
    "an empty range": (["--dist", "uniform:5,5"], "is not LOW,HIGH with 0 <= LOW < HIGH"),
    "no mean": (["--dist", "pareto:1,1"], "with at most 1 there is no mean"),
    "no variance": (["--dist", "pareto:1,1.5", "--strategy", "mean-stdev"], "the variance is infinite"),
    "no price for time": (["--dist", "gamma:2,2", "--strategy", "brute-force", "--alpha", "0", "--gamma", "1"],
                          "--alpha: must be above 0"),
    "nothing costs": (["--dist", "gamma:2,2", "--alpha", "0"], "so every sequence costs 0"),
    "a negative price": (["--dist", "gamma:2,2", "--beta", "-1"], "--beta: -1.0 is not a number of at least 0"),
    "no file": (["--dist", "history:/nonexistent"], "/nonexistent: cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_computed_is_refused_in_one_line(ebb, case):
    arguments, message = BAD[case]
    result = ebb("reserve", *arguments)
    assert result.code == 2
    assert message in result.err
    assert (result.out, result.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("line", ["abc", "-5", "0", "nan", "inf"])
def test_a_bad_run_time_is_named_by_file_and_line(ebb, tmp_path, line):
    path = tmp_path / "runs"
    path.write_text(f"10\n{line}\n")
    result = ebb("reserve", "--dist", f"history:{path}")
    assert result.code == 2
    assert f"{path}:2: " in result.err


# --- alpha and gamma from a journal ---


def history(*points):
    """The events of jobs that asked for so long, and waited so long, as rows of a journal."""
    room, rows = Allocation((NodeAllocation(NodeId("a"), (), 1.0, 0),)), []
    for number, (asked, waited) in enumerate(points):
        id, at = JobId(str(number)), 10_000.0 * number
        spec = JobSpec(command=("x",), workdir="/", time_limit_s=asked)
        rows += [
            (at, e.JobSubmitted(id, spec, "ann")),
            (at + waited, e.AttemptPlaced(id, 1, room, "")),
            (at + waited, e.AttemptStarted(id, 1, 1)),
        ]
    return [(n, time, type(event).__name__, json.dumps(encode(event))) for n, (time, event) in enumerate(rows, 1)]


def journal(path, rows):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY, time REAL, kind TEXT, body TEXT)")
        db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        db.execute("PRAGMA user_version = 1")
    db.close()
    return str(path)


def export(path, rows):
    lines = [{"sequence": n, "time": time, "kind": kind, "body": json.loads(body)} for n, time, kind, body in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


AFFINE = history(*((100.0 * n, 60 + 50.0 * n) for n in range(1, 13)))


@pytest.mark.parametrize("written", [journal, export])
def test_a_journal_or_its_export_gives_alpha_and_gamma(ebb, tmp_path, written):
    path = written(tmp_path / "past", AFFINE)
    fit = json.loads(ebb("reserve", "--fit", path, "--json").out)["fit"]
    assert fit == {"alpha": pytest.approx(0.5), "gamma": pytest.approx(60), "starts": 12,
                   "residual_s": pytest.approx(0, abs=1e-6)}  # fmt: skip


def test_the_fitted_prices_are_those_of_the_sequence(ebb, tmp_path):
    path = journal(tmp_path / "past", AFFINE)
    fitted = json.loads(ebb("reserve", "--dist", "uniform:100,200", "--fit", path, "--beta", "1", "--json").out)
    given = ("--alpha", "0.5", "--beta", "1", "--gamma", "60")
    told = json.loads(ebb("reserve", "--dist", "uniform:100,200", *given, "--json").out)
    assert fitted.pop("fit")["starts"] == 12
    assert fitted["expected_cost"] == pytest.approx(told["expected_cost"])
    assert fitted["sequence"] == told["sequence"]


def test_people_read_what_was_fitted_and_how_well(ebb, tmp_path):
    result = ebb("reserve", "--fit", export(tmp_path / "past", AFFINE))
    assert result.out == "Waiting time: 0.5 s per second asked for + 60 s (12 starts, 0 s off)\n"


def test_the_journal_is_only_read(ebb, tmp_path):
    path = tmp_path / "past"
    journal(path, AFFINE)
    before = path.read_bytes()
    ebb("reserve", "--fit", str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_journal_that_does_not_tell_fails_in_one_line(ebb, tmp_path):
    few = journal(tmp_path / "few", history((60.0, 1.0)))
    falling = export(tmp_path / "falling", history(*((100.0 * n, 5000 - 50.0 * n) for n in range(1, 13))))
    for path, message in ((few, "has 1 starts of jobs that asked"), (falling, "did not wait longer in 12 starts")):
        result = ebb("reserve", "--fit", path)
        assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
        assert f"{path}: " in result.err
        assert message in result.err


BAD_FIT = {
    "no file": (["--fit", "/nonexistent"], "/nonexistent: cannot be read"),
    "a folder": (["--fit", "/"], "/: cannot be read"),
    "no journal": (["--fit", __file__], ":1: is not a JSON object"),
    "alpha twice": (["--fit", "x", "--alpha", "1"], "--alpha: is what --fit finds"),
    "gamma twice": (["--fit", "x", "--gamma", "0"], "--gamma: is what --fit finds"),
    "nothing to do": ([], "--dist: is needed, or --fit"),
}


@pytest.mark.parametrize("case", BAD_FIT)
def test_wrong_usage_of_fit_is_refused_in_one_line(ebb, case):
    arguments, message = BAD_FIT[case]
    result = ebb("reserve", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
