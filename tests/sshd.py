"""An SSH server on loopback whose ports are hosts: each has a home directory of its own, and the tests' account."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ebbtide_protos.version import VERSION

from tests.ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
READY_BY_S = 60.0
GONE = "ws9"
"""A host that ssh knows and that does not answer."""
QUICK_INSTALL = """#!/bin/sh
set -eu
target=$1/ebbtide-{version}
[ ! -e "$target" ] || { echo "install.sh: $target exists: remove it first" >&2; exit 1; }
mkdir -p "$target/bin"
printf '#!/bin/sh\\nexec {python} -P -m ebbtide_cli.main "$@"\\n' > "$target/bin/ebb"
chmod 755 "$target/bin/ebb"
ln -sfn ebbtide-{version} "$1/ebbtide"
"""
CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
MaxStartups 100
"""
AS_HOST = """#!/bin/sh
cd "{homes}/$1"
[ ! -e .first ] || . ./.first
exec env -i HOME="$PWD" PATH="{programs}:/usr/bin:/bin" sh -c "$SSH_ORIGINAL_COMMAND"
"""


def server() -> str | None:
    """The program of OpenSSH's server; ordinary accounts have no sbin on their path."""
    have = all(shutil.which(name) for name in ("ssh", "ssh-keygen"))
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") if have else None


@dataclass(frozen=True)
class Hosts:
    """Some hosts, by the names that ``ssh_config`` gives them."""

    folder: Path
    names: tuple[str, ...]

    @property
    def ssh_config(self) -> Path:
        """What `ssh -F` reads."""
        return self.folder / "ssh_config"

    @property
    def programs(self) -> Path:
        """A directory on the path of every host."""
        return self.folder / "programs"

    def directory(self, name: str) -> Path:
        """The home directory of the account on a host."""
        return self.folder / "homes" / name

    def home(self, name: str) -> Path:
        """Its EBB_HOME."""
        return self.directory(name) / ".local/state/ebbtide"

    def first(self, name: str, script: str) -> None:
        """Have a host run this before each command."""
        (self.directory(name) / ".first").write_text(script)

    def record(self, name: str) -> dict[str, object]:
        """What its agent says about itself."""
        record: dict[str, object] = json.loads((self.home(name) / "nodes" / name / "agent.json").read_text())
        return record


@contextmanager
def some_hosts(*names: str) -> Iterator[Hosts]:
    """Serve so many hosts until the end of the block."""
    program = server()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="ebb-ssh-") as place, socket.socket() as nobody:
        hosts = Hosts(Path(place), names)
        _make_keys(hosts.folder)
        served = (*names, GONE)
        ports = dict(zip(served, free_ports(len(served)), strict=True))
        nobody.bind(("127.0.0.1", ports[GONE]))  # it is nobody else's, and does not listen
        _write(hosts, ports)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the server wants it, and keeps nothing there
        with (hosts.folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen([program, "-D", "-e", "-f", hosts.folder / "sshd_config"], stderr=log)
            try:
                for name in names:
                    _await(ports[name], process)
                yield hosts
            finally:
                process.terminate()
                process.wait(10)


def _await(port: int, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the server listens at this port."""
    give_up = time.monotonic() + READY_BY_S
    while server.poll() is None and time.monotonic() < give_up:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=READY_BY_S):
            return
        time.sleep(0.02)
    raise AssertionError(f"sshd does not listen at port {port}; exit code {server.poll()}")


def _make_keys(folder: Path) -> None:
    for key in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")


def _write(hosts: Hosts, ports: dict[str, int]) -> None:
    folder = hosts.folder
    hosts.programs.mkdir()
    (hosts.programs / f"python{PYTHON}").symlink_to(sys.executable)
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"[127.0.0.1]:{port} {public}\n" for port in ports.values()))
    as_host = folder / "as_host"
    as_host.write_text(AS_HOST.format(homes=folder / "homes", programs=hosts.programs))
    as_host.chmod(0o755)
    config = [CONFIG.format(folder=folder)]
    client = []
    for name in hosts.names:
        hosts.directory(name).mkdir(parents=True)
        config.insert(0, f"ListenAddress 127.0.0.1:{ports[name]}\n")
        config.append(f"Match LocalPort {ports[name]}\n    ForceCommand {as_host} {name}\n")
    for name, port in ports.items():
        client.append(f"Host {name}\n    HostName 127.0.0.1\n    Port {port}\n")
    client.append(f"Host *\n    IdentityFile {folder}/key\n    IdentitiesOnly yes\n")
    client.append(f"    UserKnownHostsFile {folder}/known_hosts\n    GlobalKnownHostsFile /dev/null\n")
    (folder / "sshd_config").write_text("".join(config))
    hosts.ssh_config.write_text("".join(client))


def a_bundle(
    folder: Path, install: str = QUICK_INSTALL, version: str = VERSION, ebb: str = "", python: str = PYTHON
) -> Path:
    """A bundle as `make bundle` writes it, but that ``install`` leads to the Python of the tests, or to ``ebb``."""
    name = f"ebbtide-{version}-py{python}-{platform.machine()}"
    tree = folder / name
    shutil.copytree(REPOSITORY / "deploy/systemd", tree / "systemd")
    (tree / "VERSION").write_text(f"{version}\n")
    (tree / "PYTHON").write_text(f"{python}\n")
    script = install.replace("{version}", version).replace("{python}", sys.executable)
    (tree / "install.sh").write_text(script)
    (tree / "ebb").write_text(ebb)
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as bundle:
        bundle.add(tree, name)
    return archive


def with_places(hosts: Hosts) -> tuple[str, ...]:
    """The options of `ebb deploy` that keep everything in the hosts' home directories, whoever runs the tests."""
    places = ("--folder", ".local/opt", "--home", ".local/state/ebbtide", "--service", "none")
    return (*places, "--ssh-config", str(hosts.ssh_config))
