"""The bundle for machines without a network: made here, installed where there is none."""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_NETWORK = ("unshare", "--map-root-user", "--net")


def sealed() -> tuple[str, ...]:
    """What runs a command without a network; nothing where the kernel does not let us."""
    with_words = [*WITHOUT_NETWORK, "true"]
    try:
        allowed = subprocess.run(with_words, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    return WITHOUT_NETWORK if allowed else ()


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    return subprocess.run(command, capture_output=True, text=True, env=kept | environment, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bundle_is_installed_without_a_network_and_starts(tmp_path: Path) -> None:
    pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    made = run(ROOT / "scripts" / "make_bundle.sh", tmp_path / "dist", PYTHON=sys.executable, **pip)
    assert made.returncode == 0, made.stderr
    archive = Path(made.stdout.strip().splitlines()[-1])
    with tarfile.open(archive) as bundle:
        bundle.extractall(tmp_path, filter="data")
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    install = ("sh", folder / "install.sh", tmp_path / "opt")

    refused = run(*install, PYTHON="python0.0")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    done = run(*sealed(), *install, PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (0, f"ebbtide {version('ebbtide')}\n"), done.stderr
    ebb = tmp_path / "opt" / "ebbtide" / "bin" / "ebb"
    assert ebb.resolve().parts[-3] == f"ebbtide-{version('ebbtide')}"
    shown = run(*sealed(), ebb, "master", "--store", "mysql://x", EBB_HOME=str(tmp_path / "home"))
    assert (shown.returncode, shown.stderr) == (2, "ebb: --store: is not postgresql://USER@HOST:PORT/DATABASE\n")
    again = run(*install, PYTHON=sys.executable)
    assert (again.returncode, "exists: remove it first" in again.stderr) == (1, True)
    assert {path.name for path in (folder / "systemd").iterdir()} == {
        path.name for path in (ROOT / "deploy" / "systemd").iterdir()
    }
