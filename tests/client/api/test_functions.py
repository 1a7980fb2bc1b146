"""Functions on their way into a job, and what came of them on the way back."""

import functools
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from ebbtide import sealed
from ebbtide_cli.api import functions
from ebbtide_cli.api.failing import FunctionFailure, JobFailed, RemoteTraceback
from ebbtide_cli.errors import Failure
from ebbtide_protos.v1 import client_pb2

from tests.client.scripted_master import make_job

NOT_SEEN_HERE = "cnot_there\nNothing\n."
"""The pickle of a class of a module that does not exist."""


def ended(state: str = "COMPLETED", attempt: int = 1, **fields: Any) -> client_pb2.Job:
    return make_job(state=state, attempt=attempt, **fields)


@pytest.fixture
def folder(home: Path) -> Path:
    return functions.written(lambda: 1, [((), {})], each=False, workdir=home, called="the arguments")


def leave(folder: Path, facts: dict[str, Any], content: bytes = b"", attempt: int = 1) -> None:
    """Do as the job's process does at its end."""
    sealed.write(folder, f"result-17-{attempt}", facts, content)


def raised(error: Exception, **facts: Any) -> tuple[dict[str, Any], bytes]:
    text = f"Traceback (most recent call last):\n  in the job\n{type(error).__name__}: {error}\n"
    about = {"kind": "raised", "words": f"{type(error).__name__}: {error}", "loading": "", "traceback": text}
    return about | facts, cloudpickle.dumps(error)


def test_only_this_account_can_enter_the_directory_of_a_function(folder: Path, home: Path) -> None:
    assert folder.parent == home / "functions"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_job_is_named_after_its_function() -> None:
    class Model:
        def fit(self) -> None: ...

        def __call__(self) -> None: ...

    assert functions.name_of(Model().fit) == "fit"
    assert functions.name_of(functools.partial(functools.partial(Model().fit))) == "fit"
    assert functions.name_of(lambda: 1) == "lambda"
    assert functions.name_of(Model()) == "Model"


def test_the_directory_is_found_again_in_the_command(folder: Path) -> None:
    assert functions.folder_of(functions.command_of(folder, sys.executable)) == folder
    assert functions.folder_of(("python", "-m", "train", str(folder))) is None
    assert functions.folder_of(("python", "train.py")) is None


def test_what_a_function_imports_is_looked_for_where_this_python_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "src").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    installed = str(Path(sys.prefix, "lib"))
    there = [str(tmp_path / "work"), str(tmp_path / "work/src"), str(tmp_path / "lib"), installed, "/not/there", ""]
    monkeypatch.setattr(sys, "path", there)
    assert list(functions.import_path(tmp_path / "work")) == ["src", str(tmp_path / "lib")]


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (lambda: lock, (), "the function cannot be pickled: TypeError"),
        (lambda _: 1, (threading.Lock(),), "the arguments of input 0 cannot be pickled: TypeError"),
        (lambda _: 1, (bytes(100_000),), "the arguments of input 0: 1[0-9]+ bytes are over the limit of 99999"),
    ],
    ids=["function", "argument", "size"],
)
def test_what_cannot_be_sent_is_named_and_nothing_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch, function: Any, arguments: tuple[Any, ...], words: str
) -> None:
    monkeypatch.setattr(sealed, "LARGEST_BYTES", 99_999)
    with pytest.raises(Failure, match=f"^submit: {words}"):
        functions.written(function, [(arguments, {})], each=True, workdir=home, called="the arguments of input {}")
    assert list(home.glob("functions/*")) == []


lock = threading.Lock()
# Pickled by value, as what a notebook defines; a function of an importable module is pickled by its name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_functions_are_not_kept_where_others_could_change_them(home: Path) -> None:
    (home / "functions").mkdir()
    (home / "functions").chmod(0o777)
    with pytest.raises(Failure, match=r"functions are kept in .*functions can be written by others: chmod go-w"):
        functions.written(lambda: 1, [((), {})], each=False, workdir=home, called="the arguments")


def test_a_value_comes_back(folder: Path) -> None:
    leave(folder, {"kind": "value"}, pickle.dumps({"loss": 0.5}))
    assert functions.outcome(folder, ended()) == {"loss": 0.5}


def test_an_exception_comes_back_with_the_traceback_of_the_job_as_its_cause(folder: Path) -> None:
    leave(folder, *raised(KeyError("tide")))
    with pytest.raises(KeyError, match="tide") as error:
        functions.outcome(folder, ended("FAILED"))
    assert isinstance(error.value.__cause__, RemoteTraceback)
    assert "\n  in the job\nKeyError: 'tide'\n" in str(error.value.__cause__)


@pytest.mark.parametrize("content", [b"", NOT_SEEN_HERE.encode()], ids=["unpickled", "unknown"])
def test_an_exception_that_is_not_known_here_comes_back_in_words(folder: Path, content: bytes) -> None:
    facts, _ = raised(ValueError("odd"))
    leave(folder, facts, content)
    with pytest.raises(FunctionFailure, match=r"^ValueError: odd$") as error:
        functions.outcome(folder, ended("FAILED"))
    assert "in the job" in str(error.value.__cause__)


def test_a_function_that_could_not_be_loaded_in_the_job_is_a_failure_of_its_own(folder: Path) -> None:
    leave(folder, *raised(ModuleNotFoundError("No module named 'mine'"), loading="cannot be loaded in the job: "))
    with pytest.raises(FunctionFailure, match="No module named 'mine'"):
        functions.outcome(folder, ended("FAILED"))


def test_a_value_whose_class_is_not_known_here_names_the_module(folder: Path) -> None:
    leave(folder, {"kind": "value"}, NOT_SEEN_HERE.encode())
    with pytest.raises(Failure, match=r"job 17: its result cannot be loaded here: ModuleNotFoundError: .*not_there"):
        functions.outcome(folder, ended())


def test_a_function_that_could_not_be_called_says_why(folder: Path) -> None:
    leave(folder, {"kind": "refused", "words": "the function was pickled by cpython 3.7"})
    with pytest.raises(JobFailed, match=r"job 17 FAILED .*: the function was pickled by cpython 3.7"):
        functions.outcome(folder, ended("FAILED", reason="failed with exit code 1"))


def test_the_result_of_an_earlier_attempt_is_not_taken_for_that_of_the_last(folder: Path) -> None:
    leave(folder, *raised(ValueError("first")), attempt=1)
    with pytest.raises(JobFailed, match=r"job 17 FAILED \(killed by signal 9\)"):
        functions.outcome(folder, ended("FAILED", attempt=2, exit_code=-9, reason="killed by signal 9"))


def test_a_result_that_is_gone_is_said_to_be(folder: Path) -> None:
    functions.discard(folder)
    with pytest.raises(JobFailed, match="COMPLETED, and its result is gone"):
        functions.outcome(folder, ended(exit_code=0))


def test_a_result_that_shows_late_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may show it some time after the master knows that the job has ended."""
    looks = []

    def look_again(path: Path) -> list[str]:
        looks.append(path)
        leave(folder, {"kind": "value"}, pickle.dumps(3))
        return []

    monkeypatch.setattr(os, "listdir", look_again)
    assert functions.outcome(folder, ended(exit_code=0)) == 3
    assert looks == [folder]


def test_nothing_that_others_could_have_written_is_unpickled(folder: Path, tmp_path: Path) -> None:
    leave(folder, {"kind": "value"}, b"cos\nmkdir\n(V" + os.fsencode(tmp_path / "pwned") + b"\ntR.")
    (folder / "result-17-1").chmod(0o660)
    with pytest.raises(Failure, match=r"job 17: its result is not read: .*can be written by others"):
        functions.outcome(folder, ended())
    assert not (tmp_path / "pwned").exists()


def test_half_a_result_is_none(folder: Path) -> None:
    leave(folder, {"kind": "value"}, pickle.dumps(list(range(1000))))
    os.truncate(folder / "result-17-1", 500)
    with pytest.raises(Failure, match=r"job 17: its result is not read: .*is not whole"):
        functions.outcome(folder, ended())


def test_a_job_that_is_removed_takes_its_results_along(folder: Path) -> None:
    sealed.write(folder, "result-17-1", {}, b"")
    sealed.write(folder, "result-18.0-1", {}, b"")
    functions.forget(folder, "17")
    assert sorted(os.listdir(folder)) == ["function", "inputs", "result-18.0-1"]
    functions.forget(folder, "18")
    assert not folder.exists()


@pytest.mark.parametrize("place", [".", "thesis", "functions", "functions/..", "functions/thesis"])
def test_a_command_that_names_another_directory_has_nothing_removed(home: Path, place: str) -> None:
    """Whoever may remove a job may see in its command what its user wrote there: any path."""
    for folder in (home, home / "thesis", home / "functions" / "thesis"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("paper.tex", "result-17-1"):
            (folder / name).write_text("years of work")
    before = sorted(home.rglob("*"))
    named = functions.folder_of(["python", "-m", "ebbtide.function", f"{home}/{place}"])
    assert named is not None
    functions.forget(named, "17")
    assert sorted(home.rglob("*")) == before


def test_a_link_in_the_place_of_a_function_is_not_followed(folder: Path, home: Path) -> None:
    (home / "thesis").mkdir()
    (home / "thesis" / "paper.tex").write_text("years of work")
    link = folder.with_name("20260101-000000-00000000")
    link.symlink_to(home / "thesis")
    functions.forget(link, "17")
    assert (home / "thesis" / "paper.tex").exists()
