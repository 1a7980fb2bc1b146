"""`ebb reserve`: how long to ask for."""

import json

import pytest


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
    assert "times that of one who knows the run time" in result.out


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
    "nothing costs": (["--dist", "gamma:2,2", "--alpha", "0"], "nothing costs anything"),
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
