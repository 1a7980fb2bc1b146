"""A Python that is isolated from what the agent's user has set or installed has to be told where our packages are."""

from pathlib import Path

import ebbtide
import ebbtide_protos

import ebbtide_agent


def package_roots() -> list[str]:
    """The folders from which it imports them, be they a checkout's or site-packages."""
    files = (ebbtide.__file__, ebbtide_protos.__file__, ebbtide_agent.__file__)
    return list(dict.fromkeys(str(Path(file).parents[1]) for file in files if file is not None))
