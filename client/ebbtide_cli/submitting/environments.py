"""Choose the Python environment of a job, which runs as if the environment had been activated before."""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import click
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.checks import scripts
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.terminal.output import complain

_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_PYTHON: Final = r"python[\d.]*"
_ISOLATED: Final = r"-[a-zA-Z]*[IE][a-zA-Z]*"
_IMPORT: Final = rb"(?m)^[ \t]*(import|from)[ \t]+ebbtide\b"

TITLE: Final = "What runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option("--venv", metavar="DIR", help="Run in this virtual environment, on a node that has it."),
    click.option("--conda", metavar="NAME|DIR", help="Run in this conda environment, on a node that has it."),
    click.option(
        "--sdk/--no-sdk",
        default=True,
        help="Let 'import ebbtide' find the node's SDK if the job's Python has none (default: yes).",
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give; warn if the job would not find the SDK."""
    if why := _without_sdk(given):
        for name in _importing(given):
            complain(
                f"{name} imports ebbtide, which is found only if it is installed there ({why}): "
                "pip install --no-deps DIR, with a checkout of Ebbtide, or its wheel"
            )
    return {"python_env": _directory(os.environ, given)}


def _without_sdk(given: Given) -> str:
    """Return why the job will not find the node's SDK, as far as can be seen here; empty if it will."""
    if not given["sdk"]:
        return "--no-sdk"
    program, *words = [os.path.basename(word) if at == 0 else word for at, word in enumerate(given["argv"] or [""])]
    if program in _CONTAINERS:
        return f"{program} passes on no environment"
    options = list(takewhile(lambda word: word.startswith("-"), words)) if re.fullmatch(_PYTHON, program) else []
    return next((f"{program} {word}" for word in options if re.fullmatch(_ISOLATED, word)), "")


def _importing(given: Given) -> Iterator[str]:
    """Yield the Python files of the command that exist here and import the SDK."""
    for name, content in scripts(given["argv"], given["workdir"] or "."):
        if name.endswith(".py") and re.search(_IMPORT, content):
            yield name


def activated(environ: Mapping[str, str], given: Given) -> Mapping[str, str]:
    """Return the environment as if that of ``--venv`` or ``--conda`` were active instead of the current one."""
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
    """Return the directory of the requested environment; empty if none was requested."""
    venv: str = given.get("venv") or ""
    conda: str = given.get("conda") or ""
    if venv and conda:
        raise Failure("submit: --conda: not together with --venv", USAGE)
    if venv or "/" in conda:
        return os.path.abspath(os.path.expanduser(venv or conda))
    return _of_conda(environ, conda) if conda else ""


def _of_conda(environ: Mapping[str, str], name: str) -> str:
    """Return the directory of the conda environment ``name``; search where conda itself would."""
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
