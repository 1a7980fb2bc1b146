"""The Pythons of this machine, of every version that there is: EBB_PYTHONS names more, with colons between them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OLDEST, NEWEST = 10, 15


@cache
def interpreters() -> dict[str, str]:
    """Paths by version, such as 3.11.2; of the SDK's oldest version, 3.10, and newer."""
    found: dict[str, str] = {}
    for path in _candidates():
        done = subprocess.run([path, "-c", "import platform; print(platform.python_version())"], capture_output=True)
        version = done.stdout.decode().strip()
        if (
            done.returncode == 0
            and version.split(".")[1].isdecimal()
            and OLDEST <= int(version.split(".")[1]) <= NEWEST
        ):
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in re.findall(r"\d+", item[0])]))


def _candidates() -> Iterator[str]:
    yield from filter(None, [*os.environ.get("EBB_PYTHONS", "").split(":"), sys.executable])
    for minor in range(OLDEST, NEWEST + 1):
        for folder in os.environ["PATH"].split(os.pathsep):
            if path := shutil.which(f"python3.{minor}", path=folder):
                yield path
        yield from map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
