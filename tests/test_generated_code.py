"""The committed modules of the wire protocol are what its ``.proto`` files say."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_generated_code_is_up_to_date() -> None:
    check = [sys.executable, REPOSITORY / "scripts" / "generate_protos.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
