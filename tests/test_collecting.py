"""Two processes share the tests: both must know each by the same name, whenever they look and whatever their hashes."""

import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(900)  # a busy machine
def test_collecting_twice_gives_every_test_the_same_id(request: pytest.FixtureRequest) -> None:
    """At least a second lies between this process's look and the other's, which draws its hashes anew."""
    chosen = request.config.option
    options = ["-m", chosen.markexpr, "-k", chosen.keyword, "-p", "no:cacheprovider", "-p", "no:xdist"]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    again = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, *request.config.args],
        cwd=request.config.rootpath,
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    there = {line for line in again.stdout.splitlines() if "::" in line}
    here = {item.nodeid for item in request.session.items}
    assert again.returncode == 0, again.stdout[-2000:]
    assert here - there == set()
