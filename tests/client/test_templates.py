"""Templates: options that have a name; and Python environments that a job runs in."""

import pytest

from tests.client.scripted_master import share


@pytest.fixture
def write(home):
    """Write a template of the user's own."""

    def template(name: str, text: str):
        path = home / "templates" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return template


def sent_spec(master):
    return master.sent("Submit")[-1].spec


BIG = 'description = "Two GPUs"\n[options]\ngpus = 2\ntime = "1d"\nenv = ["A=1", "B=1"]\nwarm = false\nte = true\n'


def test_a_templates_options_stand_before_all_others(ebb, master, write):
    write("big", BIG)
    assert ebb("submit", "--template", "big", "--env", "B=2", "--time", "1h", "--", "true").code == 0
    spec = sent_spec(master)
    assert (spec.gpus_max, spec.time_limit_s, spec.cold) == (share(2), 3600, True)
    assert (spec.env["A"], spec.env["B"]) == ("1", "2")


def test_a_script_may_name_a_template_and_wins_over_it(ebb, master, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("big", BIG)
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#EBB --time 2h --template big\n")
    assert ebb("submit", "train.sh").code == 0
    assert (sent_spec(master).gpus_max, sent_spec(master).time_limit_s) == (share(2), 7200)


def test_the_later_of_two_templates_wins(ebb, master, write):
    write("big", BIG)
    write("small", "[options]\ncpu-only = true\n")
    assert ebb("submit", "--template", "big", "--template", "small", "--", "true").code == 0
    assert sent_spec(master).gpus_max == share(0)


def test_a_list_of_a_template_is_replaced_by_a_later_source_and_not_by_itself(ebb, master, write):
    write("left", '[options]\non = ["a", "b"]\nexclude = "c"\n')
    write("right", '[options]\non = ["d"]\n')
    for typed, on in (((), ["a", "b"]), (("--template", "right"), ["d"]), (("--on", "e"), ["e"])):
        assert ebb("submit", "--template", "left", *typed, "--", "true").code == 0
        assert (list(sent_spec(master).needs.on), list(sent_spec(master).needs.exclude)) == (on, ["c"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[options]\ngpus = 0\n", "big.toml: gpus: Invalid value for '--gpus': '0' is no GPU at all"),
        ("[options]\nnonsense = 1\n", "big.toml: nonsense: there is no option '--nonsense'"),
        ("[options]\nhold = 3\n", "big.toml: hold: Option '--hold' does not take a value"),
        ("[options]\ngpus = {a = 1}\n", "big.toml: gpus: is neither a text, nor a number"),
        ('[options]\ntemplate = "x"\n', "big.toml: template: a template does not name others"),
        ("gpus = 2\n", "big.toml: has a description and a table [options], and nothing else"),
        ("[options\n", "big.toml: Expected ']'"),
    ],
)
def test_a_mistake_in_a_template_names_file_and_option(ebb, master, write, text, reason):
    write("big", text)
    result = ebb("submit", "--template", "big", "--", "true")
    assert (result.code, master.sent("Submit")) == (2, [])
    assert reason in result.complaint


def test_an_unknown_template_names_those_that_there_are(ebb, master, write):
    assert "'big' is not known: there is none in" in ebb("submit", "--template", "big", "--", "true").complaint
    write("small", "")
    assert "'big' is not known: there are small" in ebb("submit", "--template", "big", "--", "true").complaint


def test_templates_are_listed(ebb, write):
    assert ebb("templates").out.startswith("No templates: write one into ")
    path = write("big", BIG)
    assert "big" in ebb("templates").out
    assert ebb("templates", "--json").json == [
        {
            "name": "big",
            "description": "Two GPUs",
            "options": ["--gpus=2", "--time=1d", "--env=A=1", "--env=B=1", "--no-warm", "--te"],
            "path": str(path),
        }
    ]


@pytest.fixture
def shell(monkeypatch):
    """A shell with an environment of its own active."""
    monkeypatch.setenv("PATH", "/old/bin:/usr/bin")
    monkeypatch.setenv("VIRTUAL_ENV", "/old")
    for name in ("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_EXE", "MAMBA_ROOT_PREFIX", "CONDA_ENVS_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_a_job_runs_as_if_its_virtual_environment_were_active(ebb, master, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ebb("submit", "--venv", "new", "--", "python", "train.py").code == 0
    spec = sent_spec(master)
    assert (spec.python_env, spec.env["VIRTUAL_ENV"]) == (f"{tmp_path}/new", f"{tmp_path}/new")
    assert spec.env["PATH"] == f"{tmp_path}/new/bin:/usr/bin"
    ebb("submit", "--venv", "new", "--env", "PATH=/mine", "--", "true")
    assert sent_spec(master).env["PATH"] == "/mine"


def test_conda_environments_are_found_by_name_or_directory(ebb, master, shell, tmp_path, monkeypatch):
    monkeypatch.setenv("CONDA_EXE", f"{tmp_path}/conda/bin/conda")
    (tmp_path / "conda/envs/torch/conda-meta").mkdir(parents=True)
    assert ebb("submit", "--conda", "torch", "--", "true").code == 0
    spec = sent_spec(master)
    assert spec.python_env == spec.env["CONDA_PREFIX"] == f"{tmp_path}/conda/envs/torch"
    assert (spec.env["CONDA_DEFAULT_ENV"], "VIRTUAL_ENV" in spec.env) == ("torch", False)
    ebb("submit", "--conda", "/elsewhere/env", "--", "true")
    assert sent_spec(master).env["PATH"] == "/elsewhere/env/bin:/usr/bin"


def test_environments_that_cannot_be_are_refused(ebb, master, shell, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "there is no environment 'torch' here" in ebb("submit", "--conda", "torch", "--", "true").complaint
    assert "not together with --venv" in ebb("submit", "--conda", "/a", "--venv", "b", "--", "true").complaint
    assert master.sent("Submit") == []
