"""`ebb deploy` to a machine with systemd, for which a namespace with directories of its own stands, and a script."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_cli.deploying import membership

from tests.client.deploying.conftest import AN_EBB, CA, INSTALL, MasterOfHosts, end_agent
from tests.client.runs import Ebb
from tests.client.scripted_master import serving
from tests.e2e.cluster import wait_for
from tests.sshd import Hosts, a_bundle

pytestmark = pytest.mark.namespaces

MOUNTS = """
for place in opt etc/systemd/system run var/lib; do
    mount --bind "$1/$place" "/$place"
done
echo ready
exec sleep infinity
"""
SSH = r"""#!/bin/sh
# Runs the command on the machine.
while [ "$1" != -- ]; do shift; done
shift 2
exec nsenter --target {pid} --user --mount --preserve-credentials \
    env -i HOME={root}/home PATH={root}/programs:/usr/sbin:/usr/bin:/bin sh -c 'cd "$HOME"; exec sh -c "$1"' sh "$*"
"""
SYSTEMCTL = r"""#!/bin/sh
# Stands in for systemd: it starts and stops what a unit says, and writes down what it was asked.
echo "$*" >> "$HOME/asked"
for last; do :; done
unit=/etc/systemd/system/$last
active=/run/active-$last
case $1 in
    is-active) [ -e "$active" ] ;;
    enable | disable) [ -e "$unit" ] ;;
    stop | restart | start)
        if [ -e "$active" ] && [ "$1" != start ]; then
            kill "$(cat "$active")" && tail --pid="$(cat "$active")" -f /dev/null
            rm "$active"
        fi
        if [ "$1" != stop ] && [ "$last" = ebbtide-agent.service ]; then
            setsid sh -c 'echo $$ > "$2"; exec $1' sh "$(sed -n 's/^ExecStart=//p' "$unit")" "$active" \
                < /dev/null > /dev/null 2>&1 &
        fi
        ;;
esac
"""


class OneMachine(Hosts):
    """The machine `ws1`, whose root deploys to the directories that packages use."""

    def home(self, name: str) -> Path:
        return self.folder / "var/lib/ebbtide"

    def asked(self) -> list[str]:
        """What systemctl was asked since the last time."""
        path = self.folder / "home/asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def units(self) -> dict[str, str]:
        """The units of the machine, by name."""
        return {path.name: path.read_text() for path in (self.folder / "etc/systemd/system").iterdir()}


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneMachine]:
    """A machine on which nothing is."""
    root = tmp_path_factory.mktemp("machine")
    for place in ("home", "programs", "opt", "etc/systemd/system", "run/systemd/system", "var/lib"):
        (root / place).mkdir(parents=True)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNTS, "sh", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as namespace:
        assert namespace.stdout is not None
        assert namespace.stdout.readline() == b"ready\n"
        ssh = SSH.replace("{root}", str(root)).replace("{pid}", str(namespace.pid))
        for name, text in {"ssh": ssh, "systemctl": SYSTEMCTL}.items():
            (root / "programs" / name).write_text(text)
            (root / "programs" / name).chmod(0o755)
        hosts = OneMachine(root, ("ws1",))
        try:
            yield hosts
        finally:
            end_agent(hosts, "ws1")
            namespace.terminate()


@pytest.fixture(autouse=True)
def master(home: Path, machine: OneMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The master of the cluster, to which `ebb` is logged in."""
    (home / "ca.pem").write_text(CA)
    monkeypatch.setenv("EBB_CA", str(home / "ca.pem"))
    monkeypatch.setenv("PATH", f"{machine.folder}/programs:/usr/sbin:/usr/bin:/bin")
    monkeypatch.setattr(membership, "LOST_S", 5.0)
    with serving(MasterOfHosts(machine)) as address:
        monkeypatch.setenv("EBB_MASTER", address)
        yield


def test_units_keep_the_agent_of_a_machine_with_systemd_until_it_is_removed(
    machine: OneMachine, ebb: Ebb, tmp_path: Path
) -> None:
    bundle = str(a_bundle(tmp_path, INSTALL, ebb=AN_EBB))
    words = ("deploy", "ssh", "ws1", "--bundle", bundle, "--agent", "--pool 'a 100'", "--json")
    first = ebb(*words)
    assert first.code == 0, first
    assert first.json[0]["changes"] == ["send", "install", "join", "start"]
    assert first.json[0]["kept_by"] == "systemd"
    assert machine.asked() == [
        "daemon-reload",
        "is-active --quiet ebbtide-agent.service",
        "enable --quiet ebbtide-agent.service",
        "enable --quiet ebbtide-leave.service",
        "restart ebbtide-agent.service",
        "start ebbtide-leave.service",
    ]
    units = machine.units()
    assert units.keys() == {"ebbtide.slice", "ebbtide-jobs.service", "ebbtide-leave.service", "ebbtide-agent.service"}
    assert "\nExecStart=/bin/sh /var/lib/ebbtide/nodes/ws1/launch.sh\n" in units["ebbtide-agent.service"]
    assert "\nEnvironment=EBB_JOBS_CGROUP=" in units["ebbtide-agent.service"]
    assert (machine.home("ws1") / "nodes/ws1/agent.json").read_text().strip() == "agent --name ws1 --pool a 100"

    assert ebb(*words).json[0]["changes"] == []
    assert machine.asked() == []

    (machine.folder / "etc/systemd/system/ebbtide-jobs.service").write_text("[Unit]\nDescription=of before\n")
    assert ebb(*words).json[0]["changes"] == ["start"]
    assert machine.asked() == ["daemon-reload"], "a running agent is not restarted for that"
    assert machine.units() == units

    without = ebb(*words, "--service", "none")
    assert (without.json[0]["kept_by"], without.json[0]["changes"]) == ("background", ["start"])
    assert machine.units() == {}
    assert ebb(*words).json[0]["kept_by"] == "systemd"

    removed = ebb("deploy", "remove", "ws1", "--json")
    assert (removed.code, removed.json[0]["result"]) == (0, "removed")
    assert machine.units() == {}
    assert list((machine.folder / "opt").iterdir()) == []
    wait_for("the agent is gone", lambda: not (machine.home("ws1") / "nodes/ws1/agent.json").exists())


def test_systemd_that_is_wanted_and_not_there_is_a_failure(machine: OneMachine, ebb: Ebb, tmp_path: Path) -> None:
    (machine.folder / "run/systemd/system").rmdir()
    bundle = str(a_bundle(tmp_path, INSTALL, ebb=AN_EBB))
    result = ebb("deploy", "ssh", "ws1", "--bundle", bundle, "--service", "systemd", "--json")
    assert (result.code, result.json[0]["step"]) == (1, "look")
    assert "no systemd keeps services of this account" in result.json[0]["reason"]
