"""Finds Ebbtide's packages for a Python that is isolated from what the agent's user has set or installed."""

from pathlib import Path

import ebbtide
import ebbtide_machine
import ebbtide_protos

import ebbtide_agent


def package_roots() -> list[str]:
    """Return the folders that hold the packages, of a checkout or of site-packages."""
    files = (ebbtide.__file__, ebbtide_machine.__file__, ebbtide_protos.__file__, ebbtide_agent.__file__)
    return list(dict.fromkeys(str(Path(file).parents[1]) for file in files if file is not None))
