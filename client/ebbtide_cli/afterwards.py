"""Run a command or show a desktop notification once `ebb wait` has seen its jobs finish."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.facts import state_of
from ebbtide_cli.jobs import summary
from ebbtide_cli.output import complain

Command = TypeVar("Command", bound=Callable[..., Any])


def afterwards_options(command: Command) -> Command:
    """Give ``command`` the options ``--then`` and ``--desktop``."""
    then = click.option(
        "--then",
        metavar="COMMAND",
        help="Run this shell command afterwards; EBB_JOBS and EBB_STATES say which jobs ended, and how.",
    )
    desktop = click.option("--desktop", is_flag=True, help="Show a notification on this desktop (notify-send).")
    return then(desktop(command))


def afterwards(jobs: Sequence[client_pb2.Job], then: str | None, desktop: bool) -> None:
    """Notify the desktop and run ``then``; a failure of either is printed, and does not count as a job's failure."""
    if desktop:
        _tell(["notify-send", "--app-name=ebb", "Ebbtide", "\n".join([summary(job) for job in jobs])])
    if then is not None:
        ids, states = " ".join([job.job_id for job in jobs]), " ".join([state_of(job) for job in jobs])
        done = subprocess.run(then, shell=True, env={**os.environ, "EBB_JOBS": ids, "EBB_STATES": states}, check=False)
        if done.returncode:
            complain(f"wait: --then: exit code {done.returncode}")


def _tell(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        complain(f"wait: --desktop: {command[0]} is not installed here")
        return
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        complain(f"wait: --desktop: {command[0]} failed: is there a desktop?")
