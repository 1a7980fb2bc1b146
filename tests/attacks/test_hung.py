"""The tool itself: who looks into a directory that hangs waits, and gets an error when it is over."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.attacks.hung import hung
from tests.e2e.cluster import wait_for

LOOKS = "import os, sys\nprint('now', flush=True)\nos.listdir(sys.argv[1])"
ASLEEP = (psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP)


@pytest.mark.fuse
def test_who_looks_into_a_hung_directory_waits_until_it_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", LOOKS, str(tmp_path)]
    with hung(tmp_path):
        looks = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert looks.stdout.readline() == "now\n"
        wait_for("it waits", lambda: psutil.Process(looks.pid).status() in ASLEEP)
    assert "connection abort" in looks.communicate(timeout=30)[1]
