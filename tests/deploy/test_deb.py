"""The package for Debian and Ubuntu: made of a bundle, installed into a directory, and removed again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_protos.version import VERSION

from tests.sshd import PYTHON, a_bundle

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.programs("dpkg", "dpkg-deb")


def make(folder: Path, version: str = VERSION) -> Path:
    """The package of a bundle whose install step leads to the Python of the tests."""
    folder.mkdir()
    command = [ROOT / "scripts/make_deb.sh", a_bundle(folder, version=version)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def field(package: Path, name: str) -> str:
    return subprocess.run(
        ["dpkg-deb", "--field", package, name], capture_output=True, text=True, check=True
    ).stdout.strip()


class Machine:
    """A directory that `dpkg` takes for the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "var/lib/dpkg/info").mkdir(parents=True)
        (root / "var/lib/dpkg/updates").mkdir()
        (root / "var/lib/dpkg/status").touch()
        (root / "tmp").mkdir()

    def dpkg(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        may = ("--force-not-root", "--force-script-chrootless", "--force-depends", "--force-bad-path")
        command = ["dpkg", f"--root={self.root}", f"--log={self.root}/log", *may, *words]
        environment = dict(os.environ) | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def install(self, package: Path) -> None:
        done = self.dpkg("--install", package)
        assert done.returncode == 0, done.stderr

    def version(self) -> str:
        ebb = self.root / "opt/ebbtide/bin/ebb"
        return subprocess.run([ebb, "--version"], capture_output=True, text=True, check=True).stdout

    def left(self) -> list[str]:
        """The files of the package, and what it installed."""
        places = ("opt", "usr")
        paths = (path for place in places for path in (self.root / place).rglob("*"))
        return sorted(str(path.relative_to(self.root)) for path in paths if not path.is_dir() or path.is_symlink())


def test_the_package_is_installed_and_removed_and_leaves_nothing_but_the_state_of_the_cluster(tmp_path: Path) -> None:
    package = make(tmp_path / "dist")
    assert field(package, "Version") == VERSION
    assert field(package, "Depends") == f"python{PYTHON}"
    machine = Machine(tmp_path / "machine")
    state = machine.root / "var/lib/ebbtide/journal.db"
    state.parent.mkdir()
    state.write_text("kept")
    machine.install(package)
    assert machine.version() == f"ebbtide {VERSION} (pure Python core)\n"
    units = {path.name for path in (machine.root / "usr/lib/systemd/system").iterdir()}
    assert units == {path.name for path in (ROOT / "deploy/systemd").iterdir()}

    machine.install(package)  # once more
    assert machine.version() == f"ebbtide {VERSION} (pure Python core)\n"

    removed = machine.dpkg("--remove", "ebbtide")
    assert removed.returncode == 0, removed.stderr
    assert machine.left() == []
    assert state.read_text() == "kept"


def test_a_newer_package_installs_beside_the_older_version_and_removing_it_removes_both(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    machine.install(make(tmp_path / "old"))
    machine.install(make(tmp_path / "new", "99.0.0"))
    opt = machine.root / "opt"
    assert os.readlink(opt / "ebbtide") == "ebbtide-99.0.0"
    assert {path.name for path in opt.iterdir()} == {"ebbtide", f"ebbtide-{VERSION}", "ebbtide-99.0.0"}
    assert machine.dpkg("--remove", "ebbtide").returncode == 0
    assert machine.left() == []


def test_what_somebody_installed_by_hand_is_not_replaced(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    by_hand = machine.root / f"opt/ebbtide-{VERSION}"
    by_hand.mkdir(parents=True)
    (by_hand / "mine").write_text(sys.executable)
    refused = machine.dpkg("--install", make(tmp_path / "dist"))
    assert refused.returncode != 0
    assert "exists: remove it first" in refused.stderr + refused.stdout
    machine.dpkg("--remove", "ebbtide")
    assert (by_hand / "mine").exists()
