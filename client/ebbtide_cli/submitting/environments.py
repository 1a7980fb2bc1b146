"""Which Python environment a job runs in: as if it had been activated before."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.values import abbreviated

OPTIONS: Final[tuple[Option, ...]] = (
    click.option("--venv", metavar="DIR", help="Run in this virtual environment; only a node that has it starts it."),
    click.option("--conda", metavar="NAME|DIR", help="The same with an environment of conda."),
)


def fields(given: Given) -> dict[str, Any]:
    """The fields of a `JobSpec` that these options give."""
    return {"python_env": _directory(os.environ, given)}


def activated(environ: Mapping[str, str], given: Given) -> Mapping[str, str]:
    """The environment as it would be with that of ``--venv`` or ``--conda`` active in place of this one's."""
    directory = _directory(environ, given)
    if not directory:
        return environ
    active = [f"{environ[name]}/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    path = [entry for entry in environ.get("PATH", os.defpath).split(":") if entry not in active]
    of_others = ("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "PYTHONHOME")
    kept = {name: value for name, value in environ.items() if name not in of_others}
    if given["venv"]:
        names = {"VIRTUAL_ENV": directory}
    else:
        names = {"CONDA_PREFIX": directory, "CONDA_DEFAULT_ENV": given["conda"], "CONDA_SHLVL": "1"}
    return {**kept, **names, "PATH": ":".join([f"{directory}/bin", *path])}


def _directory(environ: Mapping[str, str], given: Given) -> str:
    """Where the environment is; empty if none was asked for."""
    venv: str = given.get("venv") or ""
    conda: str = given.get("conda") or ""
    if venv and conda:
        raise Failure("submit: --conda: not together with --venv", USAGE)
    if venv or "/" in conda:
        return os.path.abspath(os.path.expanduser(venv or conda))
    return _of_conda(environ, conda) if conda else ""


def _of_conda(environ: Mapping[str, str], name: str) -> str:
    """The directory of conda's environment of that name, where conda itself would look."""
    found = next((path for path in _candidates(environ, name) if (path / "conda-meta").is_dir()), None)
    if found is None:
        raise Failure(
            f"submit: --conda: there is no environment {abbreviated(name)!r} here: write its directory", USAGE
        )
    return str(found)


def _candidates(environ: Mapping[str, str], name: str) -> Iterator[Path]:
    root = environ.get("MAMBA_ROOT_PREFIX") or environ.get("CONDA_EXE", "").removesuffix("/bin/conda")
    if root and name == "base":
        yield Path(root)
    folders = [folder for folder in environ.get("CONDA_ENVS_PATH", "").split(":") if folder]
    own = Path(environ.get("HOME", "/")) / ".conda"
    for folder in [*folders, *([f"{root}/envs"] if root else []), f"{own}/envs"]:
        yield Path(folder, name)
    try:
        known = (own / "environments.txt").read_text().splitlines()
    except (OSError, ValueError):
        return
    yield from (Path(line) for line in known if line.endswith(f"/{name}"))
