"""What a later process of this job would have to import and to know, to be ready before its script begins."""

import base64
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

# What Ebbtide sets itself, anew for each attempt.
_OURS = ("EBB_", "CUDA_VISIBLE_DEVICES", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GLOO_SOCKET_IFNAME")
_LARGEST = 48 * 1024  # a message holds 64 KiB
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def facts() -> dict[str, object]:
    """The message that tells it, one object of JSON: see `modules` and `changed`.

    The modules come compressed: zlib, base 85, one name a line. Empty if they are too many, in all local ranks but the
    first, and where the command line keeps Python from what would make it ready.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0" or not _obeys_site():
        return {}
    packed = base64.b85encode(zlib.compress("\n".join(modules()).encode())).decode()
    content = {"modules": packed, "changed": changed(_first_environment(), os.environ)}
    return {"pid": os.getpid(), **content} if len(str(content)) <= _LARGEST else {}


def modules() -> list[str]:
    """Names of all modules that are imported from site-packages, in the order in which their import began.

    What lies elsewhere is the user's own code, or is imported by them.
    """
    return [name for name, module in list(sys.modules.items()) if _is_installed(name, module)]


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The variables that differ, with their later values, "" for one that is gone; those of ours excepted."""
    names = [name for name in {*before, *after} if not name.startswith(_OURS)]
    return {name: after.get(name, "") for name in sorted(names) if before.get(name) != after.get(name)}


def _is_installed(name: str, module: object) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or name == "__main__":
        return False
    return name.partition(".")[0] == "ebbtide" or any(part in file for part in _INSTALLED)


def _first_environment() -> dict[str, str]:
    """This process's environment as it was given. Raises OSError."""
    entries = [os.fsdecode(entry) for entry in Path("/proc/self/environ").read_bytes().split(b"\0") if b"=" in entry]
    return dict(entry.split("=", 1) for entry in entries)


def _obeys_site() -> bool:
    """Whether PYTHONPATH and sitecustomize mean anything to this command line."""
    return not (sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site) and "site" in sys.modules
