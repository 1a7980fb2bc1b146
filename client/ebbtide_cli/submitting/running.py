"""Define the options for a job's name, directory and processes."""

import os
from pathlib import Path
from typing import Any, Final

import click
from ebbtide_core.model import limits
from ebbtide_core.model.choices import LaunchMode

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.checks import default_name, digests, working_directory
from ebbtide_cli.submitting.snapshots import is_taken
from ebbtide_cli.submitting.topic import EnumChoice, Given, Option

TITLE: Final = "What runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option("--name", help="Name of the job in lists (default: the script's name)."),
    click.option("--workdir", metavar="DIR", help="Working directory of the job (default: this one)."),
    click.option(
        "--launch",
        type=EnumChoice(LaunchMode),
        default="single",
        help="Start one process (default), or one per GPU with torch.distributed's environment variables.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, limits.MAX_RETRIES),
        default=0,
        help="Number of times that the job is started again after it failed.",
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    workdir = working_directory(given["workdir"])
    if given["name"] == "":
        raise Failure("submit: --name: is empty: leave it out to call the job after its script", USAGE)
    argv, script = given["argv"], given.get("script")
    slurm = script is not None and "#SBATCH" in script.marks
    if slurm and given["launch"] is not LaunchMode.SINGLE:
        raise Failure("submit: --launch: a script with #SBATCH lines starts its tasks itself, with srun", USAGE)
    if script is not None and not script.is_shell:
        argv, script = (*script.interpreter, _place(script.name, workdir, given), *argv[1:]), None
    return {
        "command": argv,
        "workdir": workdir,
        "name": default_name(argv) if given["name"] is None else given["name"],
        "scripts": {} if script else digests(argv, workdir),
        "script": script.text if script else "",
        "slurm": slurm,
    }


def _place(script: str, workdir: str, given: Given) -> str:
    """Return where a script that is not copied lies: in the snapshot if one takes it along, else where it is here."""
    here, root = os.path.abspath(script), os.path.realpath(workdir)
    folder, name = os.path.split(here)
    named = os.path.relpath(os.path.join(os.path.realpath(folder), name), root)
    meant = os.path.relpath(os.path.realpath(here), root)  # another path if the script is a link
    if named.split(os.sep)[0] != os.pardir and is_taken(given):
        from ebbtide_cli.snapshot.files import list_files

        if {named, meant} <= {entry.path for entry in list_files(Path(workdir))}:
            return f"./{named}"
    return here
