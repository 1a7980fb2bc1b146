"""The demo tells the truth, and leaves nothing behind."""

import os
import re
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import EBB, REPOSITORY, wait_for
from tests.processes import every_process


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_every_claim_of_the_demo_holds(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*EBB, "demo", "--seed", "7"], env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    claims = re.findall(r"^[✓✗] (holds|FAILS)", done.stdout, re.MULTILINE)
    assert len(claims) >= 9
    assert set(claims) == {"holds"}
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_demo_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [*EBB, "demo"], env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "warm-up: RUNNING" in line:
                break
        demo.send_signal(2)
        out, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Traceback" not in out
    wait_for("nothing is left", lambda: not _mentions(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def _mentions(folder: str) -> list[str]:
    """Processes whose environment names ``folder`` as their home."""
    found = []
    for process in every_process():
        try:
            if folder in process.environ().get("EBB_HOME", ""):
                found.append(str(process))
        except (psutil.Error, OSError):
            continue
    return found
