"""``ebb init``: write a first training script that can be suspended, and a configuration file to edit."""

import os
import re
import shlex
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import click

from ebbtide_cli.commands.verb import OneOf, examples, json_option
from ebbtide_cli.errors import FAILED, Failure
from ebbtide_cli.example_files import examples_folder
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.writing import replaced

SCRIPT: Final = "train.py"
CONFIG: Final = "ebbtide.toml"
_COMMAND: Final = re.compile(r"^\s*(ebb submit .+)$", re.MULTILINE)


class Starter(NamedTuple):
    """An example to start from: its file, the data that it reads, and what it imports that ``extra`` brings."""

    script: str
    extra: str
    packages: tuple[str, ...]
    data: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the script under its new name; its docstring has the command that submits it."""
        return (examples_folder() / self.script).read_text("utf-8").replace(f"examples/{self.script}", SCRIPT)


STARTERS: Final = {
    "pytorch": Starter("digits.py", "examples", ("torch", "sklearn")),
    "hf": Starter("hf_trainer.py", "hf", ("torch", "transformers", "accelerate"), ("data/tides.txt",)),
    "lightning": Starter("lightning_fit.py", "lightning", ("torch", "sklearn", "pytorch_lightning", "tensorboard")),
    "plain": Starter("plain.py", "examples", ("numpy",)),
}


@click.command(
    epilog=examples(
        "ebb init first",
        "ebb init lm --template hf",
        "ebb init digits --template lightning --json",
        "ebb init first --template plain --force",
    )
)
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--template",
    type=OneOf(STARTERS),
    default="pytorch",
    show_default=True,
    help="What the script is written with; hf: the Hugging Face Trainer, plain: numpy, without importing Ebbtide.",
)
@click.option("--force", is_flag=True, help="Write over files that exist.")
@json_option
def command(directory: Path, template: str, force: bool, as_json: bool) -> None:
    """Write a first training script that can be suspended, and a configuration file, into DIR (default: here).

    train.py trains a small model, and goes on exactly where it was after 'ebb suspend' and 'ebb resume'. ebbtide.toml
    is the configuration of a cluster's master, with its settings explained and none in force.
    """
    starter = STARTERS[template]
    script = starter.text()
    files = {CONFIG: (examples_folder() / CONFIG).read_text("utf-8"), SCRIPT: script}
    files |= {name: (examples_folder() / name).read_text("utf-8") for name in starter.data}
    _write(directory, files, force)
    found = _COMMAND.search(script)
    assert found, "each example says how it is submitted"
    enter = [] if directory == Path() else [f"cd {shlex.quote(str(directory))}"]
    following = [*enter, f"ebb up --config {CONFIG}", found[1]]
    missing = [name for name in starter.packages if find_spec(name) is None]
    if as_json:
        written = [str(directory / name) for name in files]
        print_json({"template": template, "files": written, "next": following, "missing": missing})
        return
    for name in files:
        print(f"wrote {directory / name}")
    print("Next:")
    for line in following:
        print(f"  {line}{'  # unless you have a cluster' if line.startswith('ebb up') else ''}")
    if missing:
        complain(f"warning: {SCRIPT} needs {', '.join(missing)}: pip install 'ebbtide[{starter.extra}]'")


def _write(directory: Path, files: dict[str, str], force: bool) -> None:
    """Write all files or, after a failure or an interrupt, none."""
    if not force:
        for name in files:
            if os.path.lexists(directory / name):
                raise Failure(f"init: {directory / name} exists already; --force writes over it", FAILED)
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as drafts:
        for name, text in files.items():
            drafts.enter_context(replaced(directory / name)).write_text(text, "utf-8")
