"""Find the training scripts that are installed with this package: the demo runs them, and ``ebb init`` copies them."""

from pathlib import Path

from ebbtide_cli.errors import Failure


def examples_folder() -> Path:
    """Return the directory of the examples: installed beside this module, or in the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "digits.py").is_file():
            return folder
    raise Failure("the training examples are not installed")
