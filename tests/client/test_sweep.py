"""Sweeps: a task for each combination of values, or for some of them."""

import pytest
from ebbtide_cli.submitting.sweep import ParameterGrid, unused


def asked(master) -> dict[int, dict[str, str]]:
    """The tasks of the one array that was submitted."""
    (request,) = master.sent("Submit")
    return {task.index: dict(task.params) for task in request.tasks}


GRID = ("--param", "lr=.1,.01", "--param", "bs=32,64,128")


def test_each_combination_is_a_task_and_the_last_param_runs_fastest(ebb, master):
    assert ebb("submit", *GRID, "--", "python", "train.py", "--lr={lr}", "{bs}").code == 0
    assert asked(master) == {
        0: {"lr": ".1", "bs": "32"},
        1: {"lr": ".1", "bs": "64"},
        2: {"lr": ".1", "bs": "128"},
        3: {"lr": ".01", "bs": "32"},
        4: {"lr": ".01", "bs": "64"},
        5: {"lr": ".01", "bs": "128"},
    }
    (request,) = master.sent("Submit")
    assert list(request.spec.command) == ["python", "train.py", "--lr={lr}", "{bs}"]


def test_rows_of_a_file_are_tasks_and_combine_with_params(ebb, master, tmp_path):
    (tmp_path / "runs.csv").write_text('model, note\nresnet,"a, b"\nvit,c\n')
    path = str(tmp_path / "runs.csv")
    assert ebb("submit", "--param-file", path, "--param", "s=1,2", "--", "x", "{model}{note}{s}").code == 0
    assert asked(master) == {
        0: {"model": "resnet", "note": "a, b", "s": "1"},
        1: {"model": "resnet", "note": "a, b", "s": "2"},
        2: {"model": "vit", "note": "c", "s": "1"},
        3: {"model": "vit", "note": "c", "s": "2"},
    }


def test_a_sample_is_the_same_for_the_same_seed(ebb, master):
    for seed in ("1", "1", "2"):
        ebb("submit", *GRID, "--sample", "2", "--seed", seed, "--", "{lr}{bs}")
    first, again, other = ([dict(task.params) for task in one.tasks] for one in master.sent("Submit"))
    assert first == again != other
    grid = ParameterGrid([[{"lr": ".1"}, {"lr": ".01"}], [{"bs": "32"}, {"bs": "64"}, {"bs": "128"}]])
    assert [values for values in (grid[index] for index in range(6)) if values in first] == first
    assert [task.index for task in master.sent("Submit")[0].tasks] == [0, 1]


def test_a_sample_of_more_than_there_are_is_all(ebb, master):
    ebb("submit", "--param", "a=1,2", "--sample", "9", "--", "{a}")
    assert len(asked(master)) == 2


def test_a_grid_of_more_combinations_than_fit_into_a_word_of_the_machine_can_be_sampled(ebb, master):
    axes = [word for name in "abcdefghijkl" for word in ("--param", f"{name}={','.join(map(str, range(50)))}")]
    for _ in range(2):
        assert ebb("submit", *axes, "--sample", "3", "--", "{a}").code == 0
    first, again = ([dict(task.params) for task in one.tasks] for one in master.sent("Submit"))
    assert first == again
    assert len({tuple(values.items()) for values in first}) == 3


def test_a_huge_grid_can_be_sampled_without_being_written_out(ebb, master):
    axes = [word for name in "abcdefgh" for word in ("--param", f"{name}={','.join(map(str, range(50)))}")]
    assert "over the limit of" in ebb("submit", *axes, "--", "{a}").complaint
    ebb("submit", *axes, "--sample", "3", "--", "{a}{b}{c}{d}{e}{f}{g}{h}")
    assert len(asked(master)) == 3


def test_params_that_nobody_mentions_are_said(ebb, master):
    result = ebb("submit", *GRID, "--", "python", "-m", "train", "--lr", "{lr}")
    assert (result.code, result.out) == (0, "17\n")
    assert result.complaint == "warning: {bs} is not in the command: the job finds it as EBB_PARAM_BS only"


@pytest.mark.parametrize(
    ("command", "script", "names"),
    [
        (["x", "{a}"], "", ["b"]),
        (["sh", "-c", "echo $EBB_PARAM_A $EBB_PARAM_B"], "", []),
        (["x.sh"], "python train.py --b $EBB_PARAM_B", ["a"]),
    ],
)
def test_a_param_is_used_in_braces_or_as_a_variable(command, script, names):
    assert unused(["a", "b"], command, script) == names


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--param", "lr"], "'lr' is not of the form NAME=VALUE,VALUE"),
        (["--param", "1=2"], "is not of the form NAME=VALUE,VALUE"),
        (["--param", "a=1", "--param", "a=2"], "--param: a is given twice"),
        (["--sample", "2"], "--sample: is a number of combinations of --param"),
        (["--param", "a=1", "--sample", "0"], "--sample"),
        (["--param-file", "/no/such.csv"], "--param-file"),
        (["--param", "a=1", "--array", "0-3"], "--param: not together with --array"),
    ],
)
def test_what_is_no_sweep_is_refused(ebb, master, options, reason):
    result = ebb("submit", *options, "--", "true")
    assert (result.code, master.sent("Submit")) == (2, [])
    assert reason in result.complaint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1\n", ":2: has 1 values for 2 names"),
        ("a\n", "has no rows"),
        ("", "has no rows"),
        ("a,a\n1,2\n", "twice"),
    ],
)
def test_a_file_with_mistakes_is_refused(ebb, master, tmp_path, text, reason):
    (tmp_path / "runs.csv").write_text(text)
    result = ebb("submit", "--param-file", str(tmp_path / "runs.csv"), "--", "{a}")
    assert (result.code, master.sent("Submit")) == (2, [])
    assert reason in result.complaint


def test_a_dry_run_lists_the_tasks(ebb, master):
    result = ebb("submit", "--dry-run", *GRID, "--", "x", "{lr}", "{bs}")
    assert [line.split() for line in result.out.splitlines()[:3]] == [
        ["INDEX", "BS", "LR"], ["0", "32", ".1"], ["1", "64", ".1"],
    ]  # fmt: skip
    told = ebb("submit", "--dry-run", "--json", "--param", "a=1,2", "--", "{a}").json
    assert told["params"] == [{"a": "1"}, {"a": "2"}]
