"""`python -m ebbtide.function` in a process of its own, as a job runs it, on folders that the client has written."""

import functools
import linecache
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ebbtide import function, sealed
from ebbtide_cli.api import functions
from ebbtide_cli.api.functions import Arguments

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def written(call: Callable[..., Any], *calls: Arguments, each: bool = False) -> Path:
    return functions.written(call, calls or [((), {})], each=each, workdir=Path.cwd(), called="the arguments")


def run(folder: Path, attempt: int = 1, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the function as attempt of job 7."""
    environment = os.environ | {"EBB_JOB_ID": "7", "EBB_ATTEMPT": str(attempt)} | variables
    command = functions.command_of(folder, sys.executable)
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def result(folder: Path, attempt: int = 1, job_id: str = "7") -> sealed.Sealed:
    return sealed.read(folder, function.result_name(job_id, attempt))


def loaded(folder: Path, attempt: int = 1) -> Any:
    return pickle.loads(result(folder, attempt).content)


def test_a_value_is_written_and_the_job_ends_well() -> None:
    folder = written(lambda a, b=0: a - b, ((5,), {"b": 2}))
    done = run(folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert result(folder).facts == {"kind": "value"}
    assert loaded(folder) == 3


def test_a_task_gets_the_input_of_its_index() -> None:
    folder = written(lambda a: a * 10, *(((number,), {}) for number in range(3)), each=True)
    assert run(folder, EBB_ARRAY_INDEX="2").returncode == 0
    assert loaded(folder) == 20


def test_tasks_of_an_array_option_all_get_the_one_input() -> None:
    folder = written(lambda a: a * 10, ((4,), {}))
    assert run(folder, EBB_ARRAY_INDEX="2").returncode == 0
    assert loaded(folder) == 40


def test_an_exception_is_written_with_its_traceback_and_printed_and_the_job_fails() -> None:
    def fails() -> None:
        raise ValueError("no such tide")

    folder = written(fails)
    done = run(folder)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: no such tide")
    facts = result(folder).facts
    assert facts["kind"] == "raised"
    assert facts["words"] == "ValueError: no such tide"
    assert f'File "{__file__}", line ' in facts["traceback"]
    assert 'raise ValueError("no such tide")' in facts["traceback"]
    assert "ebbtide/function.py" not in facts["traceback"]
    assert repr(loaded(folder)) == "ValueError('no such tide')"


def test_the_lines_of_a_cell_that_is_no_file_are_shown_too() -> None:
    cell = "def fails():\n    return [][0]  # in a cell\n"
    linecache.cache["<cell 1>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 1>")
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, "<cell 1>", "exec"), defined)
    folder = written(functools.partial(defined["fails"]))
    run(folder)
    assert 'File "<cell 1>", line 2, in fails\n    return [][0]  # in a cell\n' in result(folder).facts["traceback"]


def test_an_exception_that_cannot_be_pickled_is_told_in_words() -> None:
    def fails() -> None:
        class Odd(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__(f"{one} and {two}")

        raise Odd(1, 2)

    folder = written(fails)
    assert run(folder).returncode == 1
    assert result(folder).content == b""
    assert result(folder).facts["words"].endswith("Odd: 1 and 2")


def test_a_value_that_cannot_be_pickled_is_an_error_that_names_its_type() -> None:
    folder = written(lambda: (number for number in range(3)))
    assert run(folder).returncode == 1
    facts = result(folder).facts
    assert facts["words"].startswith("the result, of type generator, cannot be pickled: TypeError: ")


def test_a_value_over_the_limit_is_refused_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(lambda: bytes(10_000))
    monkeypatch.setattr(sealed, "LARGEST_BYTES", 9_999)
    for name, value in {"EBB_JOB_ID": "7", "EBB_ATTEMPT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["function", str(folder)])
    with pytest.raises(SystemExit, match="over the limit of 9999: write it into EBB_OUTPUT_DIR, and return its path"):
        function.main()
    assert result(folder).facts["kind"] == "refused"


def test_another_version_of_python_says_which_two_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "python_version", lambda: "cpython 3.7")
    folder = written(lambda: 1)
    done = run(folder)
    assert done.returncode == 1
    here = function.python_version()
    assert f"was pickled by cpython 3.7, and the job runs {here} ({sys.executable})" in done.stderr
    assert result(folder).facts == {"kind": "refused", "words": done.stderr.strip().removeprefix("ebbtide: ")}


def test_a_python_without_cloudpickle_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cloudpickle.py").write_text("raise ModuleNotFoundError(name='cloudpickle')\n")
    folder = written(lambda: 1)
    done = run(folder, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert f"{sys.executable} has no cloudpickle, which functions need: pip install cloudpickle" in done.stderr


def test_a_module_that_the_job_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_notebook.py").write_text("def one():\n    return 1\n")
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        from of_the_notebook import one  # type: ignore[import-not-found]

        found, lacking = written(one), written(one)
    assert run(found).returncode == 0
    (tmp_path / "of_the_notebook.py").unlink()
    done = run(lacking)
    assert done.returncode == 1
    assert (
        "cannot be loaded in the job: ModuleNotFoundError: No module named 'of_the_notebook'"
        in (result(lacking).facts["words"])
    )


def test_what_leaves_by_an_exit_code_has_no_result_yet() -> None:
    """As a function does that has saved and is suspended: it is called again, and returns then."""

    def leaves() -> int:
        sys.exit(85)

    folder = written(leaves)
    assert run(folder).returncode == 85
    assert sorted(os.listdir(folder)) == ["function", "inputs"]


def test_each_attempt_writes_a_result_of_its_own() -> None:
    folder = written(lambda: __import__("os").environ["EBB_ATTEMPT"])
    for attempt in (2, 1):  # the first one was thought dead, and ends late
        assert run(folder, attempt).returncode == 0
    assert [loaded(folder, attempt) for attempt in (1, 2)] == ["1", "2"]


@pytest.mark.parametrize("rank", [{"RANK": "1"}, {"EBB_NODE_RANK": "1"}])
def test_only_the_first_rank_speaks_for_the_job(rank: dict[str, str]) -> None:
    folder = written(lambda: 1)
    assert run(folder, **rank).returncode == 0
    assert not list(folder.glob("result-*"))


def test_a_rank_that_fails_ends_with_an_error_and_its_traceback() -> None:
    folder = written(lambda: [][0])
    done = run(folder, RANK="1")
    assert done.returncode == 1
    assert "IndexError" in done.stderr


def test_a_function_that_others_could_have_written_is_not_run(tmp_path: Path) -> None:
    folder = written(lambda: print("run"))
    (folder / "function").chmod(0o666)
    done = run(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "function: can be written by others: chmod go-w" in done.stderr


def test_arguments_that_have_changed_are_not_loaded() -> None:
    folder = written(lambda a: a, ((b"abc",), {}))
    content = (folder / "inputs").read_bytes().replace(b"abc", b"abd")
    (folder / "inputs").write_bytes(content)
    done = run(folder)
    assert done.returncode == 1
    assert "inputs: is not whole" in done.stderr


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert f"No such file or directory: '{function.FUNCTION}'" in done.stderr


def test_the_function_module_needs_no_more_than_the_standard_library_until_it_calls() -> None:
    script = "import ebbtide.function, sys; print('cloudpickle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
