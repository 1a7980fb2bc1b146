"""Write a Python function where its job finds it, and read what came of it.

Function, arguments and results are pickles in a directory of the user, `FOLDER` in ``EBB_HOME`` or its default, which
the nodes have to share. Only files are unpickled that this account wrote (see `ebbtide.sealed`).
"""

import hashlib
import linecache
import os
import pickle
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbtide import sealed
from ebbtide.function import FUNCTION, INPUTS, MODULE, RAISED, VALUE, Input, python_version, result_name
from ebbtide_core.model.limits import MAX_NAME_LENGTH
from ebbtide_machine.place import NotTrusted, make_folder
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.api.failing import FunctionFailure, JobFailed, RemoteTraceback
from ebbtide_cli.describing.jobs import summary
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.masters.connection import ask
from ebbtide_cli.terminal.text import printable

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

FOLDER: Final = "functions"
LARGEST_SOURCE: Final = 256 * 1024
"""Characters of the file of a function that are kept, so that a traceback from the job can show its lines."""
LATE_S: Final = 5.0
"""Seconds for which a file that was written on another machine may be missing here: network file systems remember
for some time that a name did not exist."""
_LOOK_S: Final = 0.2
_NAME: Final = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The positional and the named arguments of one call."""


def written(
    function: Callable[..., Any], calls: Iterable[Arguments], *, each: bool, workdir: Path, called: str
) -> Path:
    """Write the function and the arguments of its calls into a new directory, and return that.

    With ``each``, every call is one for a task of an array. ``called`` is the word for a call in errors. Raises
    `Failure`; nothing is left behind then.
    """
    pickled = _pickled("the function", function)
    folder = _made()
    try:
        inputs = list(_write_inputs(folder / INPUTS, calls, called))
        facts = {"python": python_version(), "path": list(import_path(workdir)), "each": each, "inputs": inputs}
        facts |= source_of(function)
        sealed.write(folder, FUNCTION, facts, pickled)
    except OSError as error:
        discard(folder)
        raise Failure(f"submit: {folder}: the function cannot be written: {error.strerror}") from None
    except BaseException:
        discard(folder)
        raise
    return folder


def command_of(folder: Path, python: str) -> tuple[str, ...]:
    """Return the command of a job that calls the function in this directory."""
    return (python, "-m", MODULE, str(folder))


def folder_of(command: Iterable[str]) -> Path | None:
    """Return the directory of the function that a job's command calls; None if it calls none."""
    match tuple(command):
        case (_, "-m", module, folder) if module == MODULE:
            return Path(folder)
    return None


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a job that calls the function."""
    function = _unwrapped(function)
    name = str(getattr(function, "__qualname__", "") or type(function).__qualname__).rpartition(".")[2]
    return printable(name).strip("<>").encode()[:MAX_NAME_LENGTH].decode(errors="ignore")


def source_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the file of a function that is pickled with its code, and the file's lines as they are now."""
    code = getattr(_unwrapped(function), "__code__", None)
    if code is None:
        return {"file": "", "source": []}
    lines = linecache.getlines(code.co_filename)
    size = sum(map(len, lines))
    return {"file": code.co_filename, "source": lines if size <= LARGEST_SOURCE else []}


def discard(folder: Path) -> None:
    """Remove a function's directory with all results; what cannot be removed stays."""
    with suppress(OSError):
        shutil.rmtree(folder)


def forget(folder: Path, job_id: str) -> None:
    """Remove the results of a job or array, and its function unless a job that was requeued has results of it.

    The directory comes from the job's command, which anybody may write as they like: what `written` did not make here
    is left alone.
    """
    if folder.parent != _root() or _NAME.fullmatch(folder.name) is None:
        return
    for path in folder.glob("result-*"):
        if path.name.split("-")[1].partition(".")[0] == job_id:
            with suppress(OSError):
                path.unlink()
    if not any(folder.glob("result-*")):
        discard(folder)


def remove(stub: "ClientServiceStub", job_id: str) -> list[str]:
    """Let the master forget a finished job or array, and remove its function and results; the ids that it had.

    Raises `Failure` if it may not be removed.
    """
    request = client_pb2.JobRequest(job_id=job_id)
    command = ask(stub.ShowJob, request).spec.command
    gone = list(ask(stub.Remove, request).job_ids)
    if (folder := folder_of(command)) is not None and "." not in job_id:
        forget(folder, job_id)
    return gone


def import_path(workdir: Path) -> Iterator[str]:
    """Yield where this Python finds the user's own modules; paths in ``workdir`` are relative to it."""
    own = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    for entry in dict.fromkeys(os.path.abspath(entry) for entry in sys.path if entry):
        if entry == str(workdir) or not os.path.isdir(entry):  # the job's directory is on its path anyway
            continue
        if not any(os.path.realpath(entry).startswith(f"{prefix}{os.sep}") for prefix in own):
            yield os.path.relpath(entry, workdir) if Path(entry).is_relative_to(workdir) else entry


def outcome(folder: Path, job: client_pb2.Job) -> Any:
    """Return what the function of a finished job returned, or raise what it raised; `JobFailed` if neither is known."""
    found = _result(folder, job)
    if found is None or found.facts["kind"] not in (VALUE, RAISED):
        why = "" if found is None else f": {found.facts['words']}"
        gone = ", and its result is gone" if found is None and job.state == job_pb2.JOB_STATE_COMPLETED else ""
        raise JobFailed(f"{summary(job)}{gone}{why}", job.job_id)
    if found.facts["kind"] == VALUE:
        try:
            return pickle.loads(found.content)
        except Exception as error:
            words = f"job {job.job_id}: its result cannot be loaded here: {type(error).__name__}: {error}"
            raise Failure(words) from error
    raise _error(found) from RemoteTraceback(found.facts["traceback"])


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function


def _error(found: sealed.Sealed) -> BaseException:
    """Return the exception that the function raised, or one that stands for it if it cannot be loaded here."""
    words = str(found.facts["words"])
    if found.content and not found.facts["loading"]:
        with suppress(Exception):  # it stands in the traceback in any case
            error = pickle.loads(found.content)
            if isinstance(error, BaseException):
                return error
    return FunctionFailure(words)


def _result(folder: Path, job: client_pb2.Job) -> sealed.Sealed | None:
    """Return what the last attempt of a finished job wrote; None if it wrote nothing. Raises `Failure`."""
    name = result_name(job.job_id, job.attempt)
    patient = job.HasField("exit_code") and job.exit_code in (0, 1)
    give_up = time.monotonic() + LATE_S
    while True:
        try:
            return sealed.read(folder, name)
        except FileNotFoundError:
            if not patient or not folder.is_dir() or time.monotonic() > give_up:
                return None
        except (sealed.NotSealed, OSError) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            raise Failure(f"job {job.job_id}: its result is not read: {words}") from None
        time.sleep(_LOOK_S)
        with suppress(OSError):
            os.listdir(folder)  # has a network file system look again


def _root() -> Path:
    return Home.current().root / FOLDER


def _made() -> Path:
    """Make a directory that only this account can enter."""
    root = _root()
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    try:
        make_folder(root)
        folder.mkdir(mode=0o700)
    except NotTrusted as error:
        raise Failure(f"submit: functions are kept in {root}: {error}") from None
    except OSError as error:
        raise Failure(f"submit: functions are kept in {root}, which cannot be made: {error.strerror}") from None
    return folder


def _write_inputs(path: Path, calls: Iterable[Arguments], called: str) -> Iterator[Input]:
    """Write the arguments of each call, one after the other, and yield where they are."""
    offset = 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for number, arguments in enumerate(calls):
            content = _pickled(called.format(number), (arguments[0], dict(arguments[1])))
            file.write(content)
            yield Input(offset, len(content), hashlib.sha256(content).hexdigest())
            offset += len(content)
        file.flush()
        os.fsync(file.fileno())


def _pickled(what: str, value: object) -> bytes:
    """Pickle a value, and with it the classes and functions of the notebook that it needs."""
    import cloudpickle  # takes long to load, and most programs submit commands

    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise Failure(f"submit: {what} cannot be pickled: {type(error).__name__}: {error}", USAGE) from error
    if len(content) > sealed.LARGEST_BYTES:
        limit = f"{len(content)} bytes are over the limit of {sealed.LARGEST_BYTES}"
        raise Failure(f"submit: {what}: {limit}: write data into a file, and pass its path", USAGE)
    return content
