"""Lets jobs share a GPU: through an MPS server of NVIDIA's if there can be one, else by time-slicing.

`control` speaks to the control daemon of one GPU, `daemon` starts and ends it with its server, `sharing` decides how
the jobs on each GPU share it and watches the servers, and `environment` builds the variables that the jobs get.
"""

import os
import shutil

from ebbtide_agent.mps.control import BINARY

AUTO = "auto"
OFF = "off"


def find_binary(option: str, *, fake: bool) -> str:
    """Return the path of the control program for `auto`, `off` or a program's path; empty: no MPS.

    Raises ValueError if the named program does not exist. Fake GPUs have no MPS unless a program is named.
    """
    if option == OFF or (option == AUTO and fake):
        return ""
    found = shutil.which(BINARY if option == AUTO else option)
    if found is None and option != AUTO:
        raise ValueError(f"--mps: {option!r} is neither auto nor off, and no program")
    return os.path.abspath(found) if found else ""
