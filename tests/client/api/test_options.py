"""Keywords are read as the options of `ebb submit` are: with its names, defaults and errors."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from ebbtide_cli.api.options import JobOptions, known_options, request, words_of
from ebbtide_cli.errors import Failure
from ebbtide_protos.v1 import job_pb2

from tests.client.runs import Ebb
from tests.client.scripted_master import ScriptedMaster, make_job, share

NOWHERE = "unix:/nowhere"


class Float64(float):
    """Writes itself as numpy's does."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)})"


class Array:
    """Is no sequence, as numpy's is none; without ``values`` on an axis it is one number, and cannot be iterated."""

    def __init__(self, *values: Any, item: float | None = None) -> None:
        self.values, self._item = values, item
        self.ndim = 0 if item is not None else 1

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return iter(self.values)

    def __array__(self) -> dict[tuple[()], float | None]:
        return {(): self._item}

    def __repr__(self) -> str:
        return f"Array({self.values or self._item})"


ARRAY = Array(Float64(0.1), Float64(1e-05))


def asked(*argv: str, **options: Any) -> job_pb2.JobSpec:
    return request(NOWHERE, argv or ("true",), options).spec


def test_every_option_of_submit_is_a_keyword_with_a_type() -> None:
    assert JobOptions.__annotations__.keys() == known_options().keys()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 2}, ["--gpus=2"]),
        ({"gpus": (1, 4)}, ["--gpus=1-4"]),
        ({"gpus": 0.25}, ["--gpus=1/4"]),
        ({"gpus": Fraction(1, 3)}, ["--gpus=1/3"]),
        ({"gpus": "1/4-2"}, ["--gpus=1/4-2"]),
        ({"gpus": 0}, ["--cpu-only"]),
        ({"cpu_only": True}, ["--cpu-only"]),
        ({"cpu_only": False}, []),
        ({"te": True, "warm": False, "snapshot": True}, ["--te", "--no-warm", "--snapshot"]),
        ({"te": False}, ["--be"]),
        ({"env": {"A": "1", "B": 2}}, ["--env=A=1", "--env=B=2"]),
        ({"env": ["A=1", "HOME"]}, ["--env=A=1", "--env=HOME"]),
        ({"env": "HOME"}, ["--env=HOME"]),
        ({"param": {"lr": [0.1, 0.01], "bs": 32}}, ["--param=lr=0.1,0.01", "--param=bs=32"]),
        (
            {"param": {"lr": [Float64(0.1)], "wd": ARRAY, "bs": Float64(2)}, "cpus": Float64(0.5)},
            ["--param=lr=0.1", "--param=wd=0.1,1e-05", "--param=bs=2.0", "--cpus=0.5"],
        ),
        (
            {"param": {"lr": Array(item=0.1), "wd": [Array(item=1e-05), 0]}, "gpus": Array(item=0.5)},
            ["--param=lr=0.1", "--param=wd=1e-05,0", "--gpus=1/2"],
        ),
        ({"param": {"lr": ".1,.01"}, "env": {"A": ["x,y", "z"]}}, ["--param=lr=.1,.01", "--env=A=x,y,z"]),
        ({"time": timedelta(hours=2)}, ["--time=7200.000000s"]),
        ({"gpu_mem": "10GiB", "name": None}, ["--gpu-mem=10GiB"]),
        ({"workdir": Path("/tmp")}, ["--workdir=/tmp"]),
        ({"cpus": 0.5, "retries": 3}, ["--cpus=0.5", "--retries=3"]),
        ({"nodes": (1, 3)}, ["--nodes=1-3"]),
    ],
    ids=str,
)
def test_values_become_the_words_that_are_typed(options: dict[str, Any], words: list[str]) -> None:
    assert list(words_of(options)) == words


def test_the_request_is_the_one_that_ebb_submit_sends(
    master: ScriptedMaster, ebb: Ebb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    master.add(make_job())
    typed = ["--gpus", "1-4", "--grace", "30s", "--env", "WANDB_MODE", "--te", "--after", "17", "--hold"]
    assert ebb("submit", *typed, "--", sys.executable, "-c", "pass").code == 0
    sent = master.sent("Submit")[0]
    options = {"gpus": "1-4", "grace": "30s", "env": "WANDB_MODE", "te": True, "after": "17", "hold": True}
    built = request(NOWHERE, ["--", sys.executable, "-c", "pass"], options)
    built.operation_id = sent.operation_id
    assert built == sent


def test_without_options_a_job_has_the_defaults_of_the_command_line() -> None:
    spec = asked("--", "true")
    assert (spec.gpus_min, spec.gpus_max) == (share(1), share(1))
    assert (spec.name, spec.priority, spec.grace_s, spec.workdir) == ("true", 42, 180.0, str(Path.cwd()))


def test_a_script_runs_as_it_is_now_and_its_options_count(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n#EBB --gpus 2 --name demo\necho $1\n")
    spec = asked(str(script), "small", gpus=4)
    assert (spec.script, spec.name, spec.gpus_min) == (script.read_text(), "demo", share(4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": "five"}, "--gpus.*'five' is not a number of GPUs"),
        ({"priority": 200}, "--priority.*1<=x<=99"),
        ({"grace": 30}, "--grace.*'30' is not a duration with units"),
        ({"launch": "dpd"}, "'dpd'.*did you mean 'ddp'|dpd"),
        ({"gpus": 2, "cpu_only": True}, "--cpu-only: not together with --gpus"),
        ({"param": {"layers": ["64,64", "128"]}}, "--param: layers: a value in a list has no comma, unlike '64,64'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_as_by_the_command_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Failure, match=f"^submit: .*(?:{words})") as failure:
        asked("true", **options)
    assert failure.value.code == 2


def test_a_misspelt_option_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match=r"there is no option 'gpu_memory'.*gpu_mem"):
        asked("true", gpu_memory="1GiB")


@pytest.mark.parametrize("name", ["wait", "dry_run", "json", "master", "help_all"])
def test_options_of_the_command_s_own_output_are_none_of_a_job(name: str) -> None:
    with pytest.raises(TypeError, match=f"there is no option '{name}'"):
        asked("true", **{name: True})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_all": "yes"}, "env_all is True or False, not 'yes'"),
        ({"gpus": True}, "gpus is not True or False"),
        ({"name": ["a", "b"]}, "name takes one value, not"),
        ({"param": {"lr": {0.1, 0.2}}}, "param takes one value, not"),
        ({"param": {"lr": Array(ARRAY, ARRAY)}}, "param takes one value, not"),
        ({"cpus": ARRAY}, "cpus takes one value, not"),
    ],
    ids=str,
)
def test_a_value_of_another_kind_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        asked("true", **options)


def test_an_option_in_the_place_of_the_command_is_refused() -> None:
    with pytest.raises(Failure, match="'--gpus' is no command: options are keywords, such as gpus=2"):
        asked("--gpus", "2", "true")
