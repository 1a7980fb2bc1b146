"""Runs, in a job, the Python function that was submitted: `python -m ebbtide.function FOLDER`.

`ebbtide.cluster` writes the folder before it submits the job:

    <folder>/function                    the pickled function; its facts say for which Python, and where inputs are
    <folder>/inputs                      the pickled arguments, one after the other: one input, or one for each task
    <folder>/result-<job>-<attempt>      what came of an attempt, written by the attempt itself

Each attempt writes a file of its own, so that one that should be dead never replaces the result of a later one.
"""

import linecache
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from ebbtide import sealed

MODULE = "ebbtide.function"
FUNCTION = "function"
INPUTS = "inputs"
VALUE, RAISED, REFUSED = "value", "raised", "refused"
"""What came of an attempt: the function returned, it raised, or it could not be called."""


class _Refusal(Exception):
    """The function cannot be called in this job; the message says why, in one line."""


class Input(NamedTuple):
    """Where the pickled arguments of one call are in the file of inputs: bytes, and their SHA-256 digest."""

    offset: int
    bytes: int
    sha256: str


def result_name(job_id: str, attempt: int) -> str:
    """Return the name of the file in which the attempt says what came of it."""
    return f"result-{job_id}-{attempt}"


def python_version() -> str:
    """Return the version of this Python, as far as pickled functions depend on it."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def main() -> None:
    """Call the function, and write down what came of it; exit with 1 if that is no value."""
    folder = Path(sys.argv[1])
    try:
        facts, content = _call(folder)
    except (_Refusal, OSError, sealed.NotSealed) as refusal:
        facts, content = {"kind": REFUSED, "words": str(refusal)}, b""
    if not _speaks_for_the_job():
        sys.exit(0 if facts["kind"] == VALUE else str(facts.get("traceback") or facts["words"]))
    name = result_name(os.environ["EBB_JOB_ID"], int(os.environ["EBB_ATTEMPT"]))
    try:
        sealed.write(folder, name, facts, content)
    except (OSError, sealed.NotSealed) as error:
        sys.exit(f"ebbtide: the result cannot be written: {error}")
    if facts["kind"] != VALUE:
        sys.exit(str(facts.get("traceback") or f"ebbtide: {facts['words']}"))


def _call(folder: Path) -> tuple[dict[str, object], bytes]:
    """Call the function; return the facts and the content of what came of it. Raises _Refusal, OSError, NotSealed."""
    made = sealed.read(folder, FUNCTION)
    if made.facts["python"] != python_version():
        raise _Refusal(
            f"the function was pickled by {made.facts['python']}, and the job runs {python_version()} "
            f"({sys.executable}), which cannot load it: submit from the same version, or choose --venv or --conda"
        )
    _extend_path(made.facts["path"])
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise _Refusal(f"{sys.executable} has no cloudpickle, which functions need: pip install cloudpickle") from None
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    index = os.environ.get("EBB_ARRAY_INDEX") or "0"
    chosen = Input(*made.facts["inputs"][int(index) if made.facts["each"] else 0])
    arguments = sealed.read_part(folder, INPUTS, *chosen)
    try:
        function: Any = pickle.loads(made.content)
        positional, named = pickle.loads(arguments)
    except Exception as error:  # noqa: BLE001 - unpickling runs code of any kind; what it raises is the user's to see
        return _raised(error, dumps, "the function, or its arguments, cannot be loaded in the job: ")
    _show_source(function, made.facts["file"], made.facts["source"])
    try:
        value = function(*positional, **named)
    except Exception as error:  # noqa: BLE001 - it is handed on to whoever waits for the result
        return _raised(error.with_traceback(_inner(error)), dumps)
    try:
        content = dumps(value)
    except Exception as error:  # noqa: BLE001 - a value may refuse to be pickled with any error
        return _raised(error, dumps, f"the result, of type {type(value).__name__}, cannot be pickled: ")
    if len(content) > sealed.LARGEST_BYTES:
        raise _Refusal(
            f"the result has {len(content)} bytes, over the limit of {sealed.LARGEST_BYTES}: "
            "write it into EBB_OUTPUT_DIR, and return its path"
        )
    return {"kind": VALUE}, content


def _show_source(function: Any, file: str, source: list[str]) -> None:
    """Let tracebacks show the lines of the function as they were; cloudpickle forgets where a function stood."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None or os.path.exists(code.co_filename):
        return
    function.__code__ = _placed(code, code.co_filename, file)
    linecache.cache[file] = (sum(map(len, source)), None, source, file)


def _placed(code: CodeType, before: str, file: str) -> CodeType:
    """Return the code, with all that is defined in it, as code of this file."""
    constants = tuple(
        _placed(one, before, file) if isinstance(one, CodeType) and one.co_filename == before else one
        for one in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=constants)


def _inner(error: Exception) -> TracebackType | None:
    """Return the traceback without the frame of this module, where it begins."""
    return error.__traceback__ and error.__traceback__.tb_next


def _raised(error: Exception, dumps: Callable[[object], bytes], words: str = "") -> tuple[dict[str, object], bytes]:
    """Return the error with its traceback as text, and pickled if it can be unpickled as what it is."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        content = dumps(error)
        again = pickle.loads(content)
    except Exception:  # noqa: BLE001 - an exception that cannot be pickled is told in words
        again, content = None, b""
    if type(again) is not type(error) or len(content) > sealed.LARGEST_BYTES:
        content = b""
    said = f"{words}{type(error).__qualname__}: {error}"
    return {"kind": RAISED, "words": said, "loading": words, "traceback": text}, content


def _extend_path(entries: list[str]) -> None:
    """Let imports find what they found where the function was submitted; relative entries are below this directory."""
    for entry in entries:
        path = os.path.abspath(entry)
        if path not in sys.path:
            sys.path.append(path)


def _speaks_for_the_job(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process, of those that run the function, is the one whose result is the job's."""
    return (variables.get("RANK") or "0") == "0" and (variables.get("EBB_NODE_RANK") or "0") == "0"


if __name__ == "__main__":
    main()
