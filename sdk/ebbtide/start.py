"""Collects what a later process of this job has to import and to know, to be ready before its script begins."""

import base64
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

# Variables that Ebbtide sets itself, anew for each attempt, by the beginnings of their names.
_OURS = ("EBB_", "CUDA_VISIBLE_DEVICES", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GLOO_SOCKET_IFNAME")
_LARGEST = 48 * 1024  # a message holds 64 KiB
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def facts() -> dict[str, object]:
    """Return the facts as one message, an object of JSON with `pid`, `modules` and `changed`. Raises OSError.

    The names of the modules are compressed (one a line, zlib, base 85). The message is empty if it would be too large,
    in all local ranks but the first, and if the command line keeps Python from what would make it ready.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0" or not _obeys_site():
        return {}
    packed = base64.b85encode(zlib.compress("\n".join(modules()).encode())).decode()
    content = {"modules": packed, "changed": changed(_first_environment(), os.environ)}
    return {"pid": os.getpid(), **content} if len(str(content)) <= _LARGEST else {}


def modules() -> list[str]:
    """Return the names of all modules that are imported from site-packages, in the order in which their import began.

    Modules that lie elsewhere are the user's own code, or are imported by those that are returned.
    """
    return [name for name, module in list(sys.modules.items()) if _is_installed(name, module)]


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that differ with their later values, "" for a removed one, without those of Ebbtide."""
    names = [name for name in {*before, *after} if not name.startswith(_OURS)]
    return {name: after.get(name, "") for name in sorted(names) if before.get(name) != after.get(name)}


def _is_installed(name: str, module: object) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or name == "__main__":
        return False
    return name.partition(".")[0] == "ebbtide" or any(part in file for part in _INSTALLED)


def _first_environment() -> dict[str, str]:
    """Return the environment that this process was started with. Raises OSError."""
    entries = [os.fsdecode(entry) for entry in Path("/proc/self/environ").read_bytes().split(b"\0") if b"=" in entry]
    return dict(entry.split("=", 1) for entry in entries)


def _obeys_site() -> bool:
    """Return whether this command line lets Python use PYTHONPATH and sitecustomize."""
    return not (sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site) and "site" in sys.modules
