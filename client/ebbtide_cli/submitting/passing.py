"""Choose which variables of the submitter's environment a job gets."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import click
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.checks import runs_script
from ebbtide_cli.submitting.environments import activated
from ebbtide_cli.submitting.topic import Given, Option
from ebbtide_cli.terminal.output import complain

FOR_ALL: Final = Path("/etc/ebbtide/submit.toml")
"""The file for all users, read beside each user's own file, with the same format."""

INHERITED: Final = r"PATH|VIRTUAL_ENV|CONDA_.*|HOME|LANG"
"""Variables that every job gets."""

OF_THE_SESSION: Final = (
    r"(EBB|SLURM|SBATCH|SSH|DBUS|TMUX|WSL|VSCODE)_\w*|XDG_(?!\w+_HOME)\w*"
    r"|PWD|OLDPWD|SHLVL|_|DISPLAY|WINDOWID|WINDOW|STY|TMUX|TTY|PS1|LS_COLORS|CUDA_VISIBLE_DEVICES"
)
"""Variables that ``--env-all`` leaves out: about this terminal or about nodes, or secrets of Ebbtide."""

MISSED: Final = (
    r"PYTHONPATH|PYTHONHOME|LD_LIBRARY_PATH|LD_PRELOAD|CUDA_(HOME|PATH)|(HF|TRANSFORMERS|TORCH|PYTORCH|NCCL|WANDB)_\w+"
    r"|(http|https|no)_proxy|(HTTP|HTTPS|NO)_PROXY"
)
"""Variables whose absence is likely to break a training."""

_PLAIN: Final = r"(?a)[A-Za-z_]\w*"
_MOST_NAMED: Final = 6

TITLE: Final = "What runs"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--env", "variables", metavar="K=V|K", multiple=True, help="Set an environment variable, or copy it from here."
    ),
    click.option(
        "--env-all", is_flag=True, help="Copy all environment variables from here, except this terminal's own."
    ),
)


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give; name variables that the job may miss."""
    environ = activated(os.environ, given)
    chosen = job_environment(environ, given["variables"], patterns(), everything=given["env_all"])
    left = [name for name in whole(environ) if environ[name] and name not in chosen]
    read = _read_by_scripts(given).intersection(left)
    ways = f"--env NAME, --env-all, or env_pass in {_own()}"
    if read:
        complain(f"the script reads {_named(sorted(read))}, set here and not passed on to the job ({ways})")
    if sys.stderr.isatty() and (missed := _missed(set(left) - read)):
        complain(f"set here, and not passed on to the job: {_named(missed)} ({ways})")
    return {"env": chosen}


def _missed(left: Iterable[str]) -> list[str]:
    return sorted(name for name in left if re.fullmatch(MISSED, name))


def _read_by_scripts(given: Given) -> set[str]:
    if not runs_script(given):
        return set()
    from ebbtide_cli.submitting.mentions import variables_read

    return variables_read(given)


def _named(names: Sequence[str]) -> str:
    return ", ".join([*names[:_MOST_NAMED], *(["others"] if len(names) > _MOST_NAMED else [])])


def whole(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of all variables that a job can have, without those of the session."""
    for name, value in environ.items():
        plain = re.fullmatch(_PLAIN, name) and (value.isascii() or value.isprintable())
        if plain and not re.fullmatch(OF_THE_SESSION, name):
            yield name


def patterns() -> tuple[str, ...]:
    """Return the patterns in ``env_pass``, for all users and for this one; `Failure` says what is wrong in a file."""
    return tuple(pattern for path in (FOR_ALL, _own()) for pattern in _read(path))


def job_environment(
    environ: Mapping[str, str], wanted: Sequence[str], passed: Sequence[str] = (), *, everything: bool = False
) -> dict[str, str]:
    """Return the environment of the job's processes.

    It has the inherited variables, those that match ``passed`` or, with ``everything``, all that a job can have, then
    ``K=V`` and ``K`` (copied) in the order given.
    """
    able = list(whole(environ))
    names = [name for name in able if everything or any(fnmatchcase(name, pattern) for pattern in passed)]
    chosen = {name: value for name, value in environ.items() if re.fullmatch(INHERITED, name)}
    chosen |= {name: environ[name] for name in names}
    for entry in wanted:
        name, separator, value = entry.partition("=")
        if not separator and name not in environ:
            raise Failure(f"submit: --env: {abbreviated(name)!r} is not set here: write {name[:20]}=VALUE", USAGE)
        chosen[name] = value if separator else environ[name]
    return chosen


def _own() -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "ebbtide" / "submit.toml"


def _read(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or 'it is no text'}", USAGE) from None
    import tomllib  # most users have no such file

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"{path}: {error}", USAGE) from None
    found = content.pop("env_pass", [])
    if content or not isinstance(found, list) or not all(isinstance(pattern, str) for pattern in found):
        raise Failure(f"{path}: has a list of names or patterns, env_pass, and nothing else", USAGE)
    return found
