"""`ebbtide.cluster` where only the SDK is: in a training's environment, or beside another distribution of ours."""

import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).parents[2] / "sdk"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a Python that has the SDK, and nothing else but its standard library."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(SDK)!r}); {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_the_client_it_says_what_to_install() -> None:
    done = run("import ebbtide.cluster")
    assert done.returncode == 1
    words = "ebbtide.cluster needs all of Ebbtide, and this Python lacks ebbtide_cli: pip install ebbtide"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {words}"


def test_the_rest_of_the_sdk_needs_none_of_it() -> None:
    done = run("import ebbtide, ebbtide.function; print('ebbtide.cluster' in sys.modules)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
