"""Write files that appear under their names once they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide_cli.errors import USAGE, Failure


@contextmanager
def replaced(name: str | Path) -> Iterator[Path]:
    """Yield a path to write to; its file is moved to ``name`` at the end, or removed after a failure."""
    part = _opened(name)
    try:
        yield part
        part.replace(name)
    finally:
        part.unlink(missing_ok=True)


def check_writable(name: str | Path) -> None:
    """Refuse a file that `replaced` could not write, before it takes long to have something to write."""
    _opened(name).unlink()


def _opened(name: str | Path) -> Path:
    target = Path(name)
    part = target.with_name(f".{target.stem}.{os.getpid()}.part{target.suffix}")
    try:
        part.touch()
    except OSError as error:
        raise Failure(f"{name}: cannot be written: {error.strerror}", USAGE) from None
    return part
