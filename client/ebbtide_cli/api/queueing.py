"""Queue functions and commands as jobs."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ebbtide_cli.api import functions
from ebbtide_cli.api.functions import Arguments
from ebbtide_cli.api.job import Job, JobArray, Link
from ebbtide_cli.api.options import JobOptions, request
from ebbtide_cli.errors import USAGE, Failure, Unreachable
from ebbtide_cli.submitting.checks import working_directory
from ebbtide_cli.submitting.sending import send
from ebbtide_cli.terminal.output import complain

Result = TypeVar("Result")
Options = Mapping[str, Any]
"""The options of a job, as `JobOptions` has them."""

FUNCTION_DEFAULTS: Final[JobOptions] = {"exit0": "completed", "snapshot": False}
"""Where a function's job differs from the defaults of ``ebb submit``: it is done if its process ends with 0, and it
runs in the directory where it was submitted, and in no copy of it."""
_MAKING_ARRAYS: Final = ("array", "param", "param_file", "sample")


def queue_command(link: Link, argv: Sequence[str], options: Options, folder: Path | None = None) -> Job[Any]:
    """Queue the job, or the array, that the options describe. Raises `Failure`, and TypeError for an unknown option."""
    asked = request(link.master, argv, options)
    reply = send(link.master, asked)
    for warning in reply.warnings:
        complain(f"warning: {warning}")
    if not asked.tasks:
        return Job(link, reply.job_id, folder)
    return JobArray(link, reply.job_id, folder, [task.index for task in asked.tasks])


def queue_call(
    link: Link, function: Callable[..., Result], args: Sequence[Any], kwargs: Options, options: Options
) -> Job[Result]:
    """Queue a job that calls the function with these arguments."""
    return _queue(link, function, [(tuple(args), kwargs)], options, each=False, called="the arguments")


def queue_calls(
    link: Link, function: Callable[..., Result], calls: Sequence[Arguments], options: Options
) -> JobArray[Result]:
    """Queue an array with a task for each of these calls."""
    if not calls:
        raise Failure("map: there are no inputs", USAGE)
    if own := next((name for name in _MAKING_ARRAYS if options.get(name)), ""):
        raise Failure(f"map: {own}: the inputs make an array already", USAGE)
    wanted = {**options, "array": f"0-{len(calls) - 1}"}
    array: Any = _queue(link, function, calls, wanted, each=True, called="the arguments of input {}")
    return cast("JobArray[Result]", array)


def _queue(
    link: Link, function: Callable[..., Any], calls: Iterable[Arguments], options: Options, *, each: bool, called: str
) -> Job[Any]:
    workdir = options.get("workdir")
    place = Path(working_directory(None if workdir is None else str(workdir)))
    folder = functions.written(function, calls, each=each, workdir=place, called=called)
    try:
        python = _python(options)
        paths = options.get("require_path") or ()
        needed = [*([paths] if isinstance(paths, str | os.PathLike) else paths), folder]
        if os.path.isabs(python):
            needed.append(python)
        chosen = {**FUNCTION_DEFAULTS, "name": functions.name_of(function), **options, "require_path": needed}
        return queue_command(link, ["--", *functions.command_of(folder, python)], chosen, folder)
    except (Unreachable, KeyboardInterrupt):
        raise  # the job may be queued all the same
    except BaseException:
        functions.discard(folder)
        raise


def _python(options: Options) -> str:
    """Return the Python of a function's job: this one, or that of the environment that was asked for."""
    if options.get("venv") or options.get("conda"):
        return "python"
    if not sys.executable:
        raise Failure("submit: this Python does not know its own path: choose one with --venv or --conda", USAGE)
    return sys.executable
