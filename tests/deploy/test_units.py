"""The units in deploy/systemd: systemd understands them, and what keeps jobs alive stands in them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from ebbtide_agent.processes.cgroup import JOBS_VARIABLE
from ebbtide_cli.commands.verb import ebb

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
INSTALLED = "/opt/ebbtide/bin/ebb"


class Unit:
    """One unit's settings; those that may come several times are lists of values."""

    def __init__(self, name: str) -> None:
        self.settings: dict[str, list[str]] = {}
        for line in (UNITS / name).read_text().splitlines():
            key, is_setting, value = line.partition("=")
            if is_setting and not line.startswith("#"):
                self.settings.setdefault(key, []).append(value)

    def __getitem__(self, key: str) -> str:
        (value,) = self.settings[key]
        return value

    def words(self, key: str) -> set[str]:
        return set(" ".join(self.settings[key]).split())


@pytest.mark.systemd
def test_systemd_understands_every_unit(tmp_path: Path) -> None:
    there = Path(sys.executable).with_name("ebb")
    for unit in UNITS.iterdir():
        (tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, str(there)))
    paths = sorted(path for path in tmp_path.iterdir() if path.suffix == ".service")
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, paths)]
    environment = dict(os.environ) | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "SYSTEMD_LOG_LEVEL": "warning"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_what_a_unit_starts_is_a_command_of_today(unit: str) -> None:
    for key in ("ExecStart", "ExecStop"):
        for line in Unit(unit).settings.get(key, []):
            program, *words = line.lstrip("-").split()
            if program == INSTALLED:
                command: click.Command = ebb
                context = click.Context(ebb)
                while isinstance(command, click.Group) and words:
                    found = command.get_command(context, words[0])
                    if found is None:
                        break
                    command, words = found, words[1:]
                command.make_context("ebb", words, resilient_parsing=True)
                assert command is not ebb


def test_whatever_happens_to_the_agent_its_jobs_are_in_a_group_that_is_left_alone() -> None:
    agent, jobs = Unit("ebbtide-agent.service"), Unit("ebbtide-jobs.service")
    (group,) = (value for value in agent.settings["Environment"] if value.startswith(f"{JOBS_VARIABLE}="))
    assert group.endswith("/ebbtide.slice/ebbtide-jobs.service")
    assert (jobs["Slice"], jobs["Delegate"], jobs["KillMode"]) == ("ebbtide.slice", "yes", "process")
    assert jobs["RefuseManualStop"] == "yes"
    assert "ebbtide-jobs.service" in agent.words("Wants") & agent.words("After")


def test_master_and_agent_are_of_different_accounts_and_have_a_directory_each() -> None:
    homes = set()
    for name in ("ebbtide-master.service", "ebbtide-agent.service"):
        unit = Unit(name)
        (home,) = (value.partition("=")[2] for value in unit.settings["Environment"] if value.startswith("EBB_HOME="))
        assert (home, unit["StateDirectoryMode"]) == (f"/var/lib/{unit['StateDirectory']}", "0700")
        homes.add(home)
    assert len(homes) == 2


def test_the_dashboard_is_of_the_masters_account_and_only_the_proxys_group_may_connect_to_its_socket() -> None:
    master, dashboard = Unit("ebbtide-master.service"), Unit("ebbtide-dashboard.service")
    for key in ("User", "StateDirectory", "StateDirectoryMode"):
        assert dashboard[key] == master[key]
    assert dashboard["Environment"] in master.settings["Environment"], "their EBB_HOME is the same"
    words = dashboard["ExecStart"].split()
    assert words[words.index("--socket") + 1].startswith(f"/run/{dashboard['RuntimeDirectory']}/")
    assert words[words.index("--group") + 1] == dashboard["SupplementaryGroups"]
    assert dashboard["RestartPreventExitStatus"] == "2"


def test_a_reload_of_the_masters_unit_is_the_signal_at_which_it_reads_its_configuration_again() -> None:
    assert Unit("ebbtide-master.service")["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_an_agent_that_may_not_use_that_group_leaves_its_jobs_alive_in_its_own() -> None:
    agent = Unit("ebbtide-agent.service")
    assert (agent["Delegate"], agent["KillMode"], agent["OOMPolicy"]) == ("yes", "process", "continue")


def test_before_a_reboot_jobs_leave_while_there_is_still_somebody_to_tell() -> None:
    leave = Unit("ebbtide-leave.service")
    assert leave.words("After") >= {"ebbtide-agent.service", "ebbtide-master.service", "network-online.target"}
    assert not leave.settings.keys() & {"Requires", "BindsTo", "PartOf"}
    (within,) = re.findall(r"--within (\d+)m", leave["ExecStop"])
    (timeout,) = re.findall(r"(\d+)min", leave["TimeoutStopSec"])
    assert int(timeout) > int(within)
