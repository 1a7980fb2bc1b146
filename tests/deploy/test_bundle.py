"""The bundle for machines without a network: made here, installed where there is none, and as an image has it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml
from ebbtide_protos.version import VERSION

from tests.deploy.dockerfile import Stage, read
from tests.e2e.cluster import wait_for

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


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked bundle of this tree."""
    folder = tmp_path_factory.mktemp("bundle")
    pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    made = run(ROOT / "scripts" / "make_bundle.sh", folder / "dist", PYTHON=sys.executable, **pip)
    assert made.returncode == 0, made.stderr
    archive = Path(made.stdout.strip().splitlines()[-1])
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bundle_is_installed_without_a_network_and_starts(bundle: Path, tmp_path: Path) -> None:
    install = ("sh", bundle / "install.sh", tmp_path / "opt")
    refused = run(*install, PYTHON="python0.0")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    done = run(*sealed(), *install, PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (0, f"ebbtide {VERSION} (pure Python core)\n"), done.stderr
    ebb = tmp_path / "opt" / "ebbtide" / "bin" / "ebb"
    assert ebb.resolve().parts[-3] == f"ebbtide-{VERSION}"
    shown = run(*sealed(), ebb, "master", "--store", "mysql://x", EBB_HOME=str(tmp_path / "home"))
    assert (shown.returncode, shown.stderr) == (2, "ebb: --store: is not postgresql://USER@HOST:PORT/DATABASE\n")
    again = run(*install, PYTHON=sys.executable)
    assert (again.returncode, "exists: remove it first" in again.stderr) == (1, True)
    for folder in ("systemd", "container"):
        assert {path.name for path in (bundle / folder).iterdir()} == {
            path.name for path in (ROOT / "deploy" / folder).iterdir()
        }


INSTALLS = {
    "uv": ("uv", "tool", "install", "--offline", "--python", sys.executable, "--no-index", "--find-links", "{wheels}"),
    "pipx": ("pipx", "install", "--python", sys.executable, "--pip-args=--no-index --find-links={wheels}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", [pytest.param(tool, marks=pytest.mark.programs(tool)) for tool in INSTALLS])
@pytest.mark.timeout(600)
def test_uv_and_pipx_give_the_commands_an_environment_of_their_own(bundle: Path, tmp_path: Path, tool: str) -> None:
    """From the bundle's wheels alone; what they keep for themselves goes into folders of this test."""
    own = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "UV_CACHE_DIR": "cache"}
    own |= {"PIPX_HOME": "tools", "PIPX_BIN_DIR": "bin", "PIPX_MAN_DIR": "man", "HOME": "home"}
    environment = {name: str(tmp_path / folder) for name, folder in own.items()} | {"EBB_HOME": str(tmp_path / "ebb")}
    command = [word.format(wheels=bundle / "wheels") for word in INSTALLS[tool]]
    done = run(*sealed(), *command, "ebbtide[dashboard]", **environment)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["ebb"]
    ebb = tmp_path / "bin" / "ebb"
    assert run(ebb, "--version", **environment).stdout == f"ebbtide {VERSION} (pure Python core)\n"
    said = run(ebb, "dashboard", "--link", **environment).stderr
    assert "no dashboard runs in EBB_HOME" in said, "its libraries are there, or it would say which are missing"


class Image:
    """What the Dockerfile makes, without Docker: its steps in a root of their own, in which the system is read-only."""

    SYSTEM = ("/usr", "/etc", "/dev", sys.base_prefix)
    """What stands for the base image."""
    ENTER = """
set -e
root=$1; volume=$2; shift 2
mount --bind "$root" "$root"
for place in SYSTEM; do mkdir -p "$root$place"; mount --rbind "$place" "$root$place"; done
mkdir -p "$root/proc" "$root/tmp"
mount -t proc proc "$root/proc"
if [ "$volume" ]; then
    mount --bind "$volume" "$root/var/lib/ebbtide"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -o remount,bind,ro "$root"
    for place in SYSTEM; do mount -o remount,bind,ro "$root$place"; done
fi
exec /usr/sbin/chroot "$root" "$@"
""".replace("SYSTEM", " ".join(SYSTEM))

    def __init__(self, root: Path, bundle: Path) -> None:
        self.root = root
        _, [build, self.last] = read(bundle / "container" / "Dockerfile")
        root.mkdir()
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        for stage in (build, self.last):
            self._perform(stage, bundle)

    def _perform(self, stage: Stage, bundle: Path) -> None:
        """Do what a stage says. The first one leaves its root to the second, which has all of it that it copies."""
        for one in stage.instructions:
            if one.name == "COPY" and not one.words[0].startswith("--from"):
                *sources, target = one.words
                for source in sources:
                    place = self.root / target.lstrip("/")
                    copy = shutil.copytree if (bundle / source).is_dir() else shutil.copy2
                    place = place / source if target.endswith("/") else place
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy(bundle / source, place)
            elif one.name == "RUN":
                path = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                done = subprocess.run(
                    [
                        "unshare",
                        "--mount",
                        "--pid",
                        "--net",
                        "--fork",
                        "sh",
                        "-c",
                        self.ENTER,
                        "sh",
                        self.root,
                        "",
                        *one.words,
                    ],
                    env={"PATH": path},
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, done.stderr
        if stage is self.last:
            shutil.rmtree(self.root / "bundle")  # of the first stage alone

    def command(self, volume: Path, words: list[str]) -> list[str | Path]:
        """What runs these words of `ebb` as the image's user, with `volume` as the only place to write to.

        Each has a network of its own, as containers have; the socket in the volume is what they share.
        """
        uid, _, gid = self.last.the("USER")[0].partition(":")
        as_user = [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={gid}",
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all",
        ]
        inside = [*as_user, *self.last.the("ENTRYPOINT"), *words]
        return [
            "unshare",
            "--mount",
            "--pid",
            "--net",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            self.ENTER,
            "sh",
            self.root,
            volume,
            *inside,
        ]

    def run(self, volume: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
        environment = self.last.environment()
        return subprocess.run(self.command(volume, words), env=environment, capture_output=True, text=True, cwd="/")

    @contextmanager
    def serving(self, volume: Path, words: list[str], said: Path) -> Iterator[psutil.Process]:
        """The process of what runs as long as the block does; it has to end well when it gets the image's signal."""
        with said.open("wb") as out:
            outer = subprocess.Popen(
                self.command(volume, words), env=self.last.environment(), stdout=out, stderr=out, cwd="/"
            )
        try:
            yield psutil.Process(outer.pid)
            [inner] = psutil.Process(outer.pid).children()
            inner.send_signal(getattr(signal, self.last.the("STOPSIGNAL")[0]))
            assert outer.wait(60) == 0, said.read_text()
        finally:
            with suppress(psutil.NoSuchProcess):  # the death of unshare does not end who has changed its account
                for inner in psutil.Process(outer.pid).children():
                    inner.kill()
            outer.kill()
            outer.wait()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.programs("setpriv", "unshare")
@pytest.mark.timeout(900)
def test_the_image_serves_as_another_account_where_only_its_volume_can_be_written_to(
    bundle: Path, tmp_path: Path
) -> None:
    """The steps of the Dockerfile, and the commands of compose.yaml; no test runs Docker itself."""
    services = yaml.safe_load((bundle / "container" / "compose.yaml").read_text())["services"]
    image = Image(tmp_path / "root", bundle)
    uid = int(image.last.the("USER")[0].partition(":")[0])
    volume = tmp_path / "volume"
    shutil.copytree(image.root / "var/lib/ebbtide", volume)
    shutil.copystat(image.root / "var/lib/ebbtide", volume)
    os.chown(volume, uid, uid)

    made = image.run(volume, ["master", "init", "--host", "login.lab.example", "--json"])
    assert made.returncode == 0, made.stderr
    assert {path.stat().st_uid for path in volume.rglob("*")} == {uid}
    with image.serving(volume, services["master"]["command"], tmp_path / "master.out"):

        def answers() -> bool:
            return image.run(volume, services["master"]["healthcheck"]["test"][2:]).returncode == 0

        wait_for("the master answers", answers, 120)
        assert image.run(volume, ["node", "invite", "ws1"]).returncode == 0
        web = [
            "dashboard",
            "--no-open",
            "--no-link",
            "--shared",
            "login.lab.example",
            "--socket",
            "/var/lib/ebbtide/web.sock",
        ]
        with image.serving(volume, web, tmp_path / "dashboard.out"):
            record = volume / "dashboard.json"
            wait_for("the dashboard serves", record.exists, 120)
            assert json.loads(record.read_text())["url"] == "https://login.lab.example"
    for place in ("/opt/x", "/usr/x", "/x"):
        refused = subprocess.run(
            ["touch" if word == "ebb" else word for word in image.command(volume, [place])],
            env=image.last.environment(),
            capture_output=True,
            text=True,
        )
        assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr
