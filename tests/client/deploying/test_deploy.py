"""`ebb deploy`: what it does on hosts, what it leaves alone, and what it says."""

import fcntl
import os
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from ebbtide_cli.deploying import deployment, membership

from tests.client.deploying.conftest import INSTALL, NAMES, SECRET, Lab, end_agent
from tests.client.runs import UNHURRIED, start_ebb
from tests.e2e.cluster import wait_for
from tests.sshd import GONE, with_places

pytestmark = pytest.mark.sshd

ALL = ["send", "install", "join", "start"]


def test_one_command_makes_hosts_nodes_and_a_second_one_changes_nothing(lab: Lab) -> None:
    bundle = str(lab.bundle())
    first = lab.deploy("ssh", *NAMES, "--bundle", bundle)
    assert first.code == 0, first
    head, *rows = first.out.splitlines()
    assert head.split("  ")[0] == "HOST"
    words = "nobody (a background process)  sent, installed, joined, started; doctor: no problem"
    assert [re.sub(" {2,}", "  ", row) for row in rows] == [f"{name}  {name}  up  {words}" for name in NAMES]
    assert "After a reboot" in first.err
    assert [lab.master.agent(name) for name in NAMES] == [f"agent --name {name}" for name in NAMES]
    agents = [(lab.hosts.home(name) / "nodes" / name / "agent.lock").read_text() for name in NAMES]

    again = lab.reports("ssh", *NAMES, "--bundle", bundle)
    assert [(report["result"], report["changes"]) for report in again.values()] == [("up", [])] * 3
    assert [(lab.hosts.home(name) / "nodes" / name / "agent.lock").read_text() for name in NAMES] == agents
    assert len(lab.master.sent("InviteNode")) == 3


def test_a_dry_run_says_what_it_would_do_and_changes_nothing(lab: Lab) -> None:
    result = lab.deploy("ssh", *NAMES, "--bundle", str(lab.bundle()), "--dry-run")
    assert result.code == 0
    assert result.out.count("would send, install, join, start") == 3
    assert [list(lab.hosts.directory(name).iterdir()) for name in NAMES] == [[], [], []]
    assert lab.master.sent("InviteNode") == []


def test_one_host_that_fails_changes_nothing_for_the_others_and_the_table_says_why(lab: Lab) -> None:
    (lab.hosts.directory("ws2") / ".local").write_text("in the way\n")
    result = lab.deploy("ssh", "ws1", "ws2", GONE, "ws3", "--bundle", str(lab.bundle()))
    assert result.code == 1
    lines = {line.split()[0]: line for line in result.out.splitlines()}
    assert " up " in lines["ws1"]
    assert " up " in lines["ws3"]
    assert re.search("failed .* sent; install: .*Not a directory", lines["ws2"])
    assert re.search("failed .* connect: .*Connection refused", lines[GONE])


def test_what_is_missing_on_a_host_is_named(lab: Lab) -> None:
    report = lab.reports("ssh", "ws1", "--bundle", str(lab.bundle(python="3.99")), code=1)["ws1"]
    assert (report["step"], report["changes"]) == ("look", [])
    assert report["reason"] == "the bundle needs Python 3.99, and there is no python3.99"


def test_a_problem_that_the_doctor_finds_is_told_and_the_exit_code_says_so(lab: Lab) -> None:
    found = '[{"check": "clock", "level": "problem", "text": "is 40 s off", "advice": "set it"}]'
    (lab.hosts.directory("ws2") / "doctor").write_text(found)
    result = lab.deploy("ssh", "ws1", "ws2", "--bundle", str(lab.bundle()))
    assert result.code == 1
    assert "doctor: clock: is 40 s off" in result.out
    assert result.out.count("doctor: no problem") == 1


def test_only_an_agent_whose_options_are_others_is_restarted(lab: Lab, tmp_path: Path) -> None:
    bundle, hostfile = str(lab.bundle()), tmp_path / "hosts.txt"
    hostfile.write_text("ws1\nws2 --label 'room=b 12'\n")
    words = ("--hostfile", str(hostfile), "--bundle", bundle)
    lab.reports("ssh", *words)
    assert lab.master.agent("ws2") == "agent --name ws2 --label room=b 12"
    hostfile.write_text("ws1\nws2 --pool a100\n")
    done = lab.reports("ssh", *words)
    assert {name: report["changes"] for name, report in done.items()} == {"ws1": [], "ws2": ["start"]}
    assert lab.master.agent("ws2") == "agent --name ws2 --pool a100"


def test_an_agent_that_died_is_started_again(lab: Lab) -> None:
    bundle = str(lab.bundle())
    lab.reports("ssh", "ws1", "--bundle", bundle)
    end_agent(lab.hosts, "ws1")
    assert lab.reports("ssh", "ws1", "--bundle", bundle)["ws1"]["changes"] == ["start"]


def test_an_agent_that_does_not_start_is_told_with_its_last_words(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.hosts.directory("ws1") / "refuses").write_text("ebb agent: there is no GPU\n")
    report = lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()), code=1)["ws1"]
    assert (report["step"], report["reason"]) == ("start", "ebb agent: there is no GPU")


def test_an_upgrade_restarts_the_agent_with_the_options_that_it_has(lab: Lab) -> None:
    lab.reports("ssh", "ws1", "ws2", "--bundle", str(lab.bundle()), "--agent", "--pool a100")
    new = str(lab.bundle(version="0.2.0"))
    done = lab.reports("upgrade", "ws1", "ws3", "--bundle", new, code=1)
    assert (done["ws1"]["result"], done["ws1"]["changes"]) == ("up", ["send", "install", "start"])
    assert "'ebb deploy ssh' does that" in done["ws3"]["reason"]
    assert lab.master.agent("ws1") == "agent --name ws1 --pool a100"
    opt = lab.hosts.directory("ws1") / ".local/opt"
    assert (opt / "ebbtide").resolve().name == "ebbtide-0.2.0"
    assert lab.reports("upgrade", "ws1", "--bundle", new)["ws1"]["changes"] == []


def test_an_install_that_was_cut_off_is_done_again(lab: Lab) -> None:
    bundle = str(lab.bundle())
    lab.reports("ssh", "ws1", "--bundle", bundle)
    builds = lab.hosts.directory("ws1") / ".local/opt/ebbtide-builds"
    (build,) = (path for path in builds.iterdir() if path.is_dir())
    (build / "ebbtide").unlink()  # it is made last
    shutil.rmtree(build / "ebbtide-0.1.0" / "bin")
    assert lab.reports("ssh", "ws1", "--bundle", bundle)["ws1"]["changes"] == ["send", "install"]


def test_ctrl_c_ends_every_ssh_and_the_next_run_goes_on(lab: Lab) -> None:
    slow = 'touch "$HOME/began"; while [ ! -e "$HOME/go" ]; do sleep 0.1; done\n'
    bundle = str(lab.bundle(INSTALL.replace("set -eu\n", f"set -eu\n{slow}")))
    words = ("deploy", "ssh", *NAMES, "--bundle", bundle, *with_places(lab.hosts))
    with start_ebb(*words, times=UNHURRIED) as process:
        wait_for("all install", lambda: all((lab.hosts.directory(name) / "began").exists() for name in NAMES))
        started = [child for child in psutil.Process(process.pid).children() if child.name() == "ssh"]
        assert len(started) == 3
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.count("sent; interrupted at install") == 3
    assert "the same command goes on" in err
    assert not [child for child in started if child.is_running()]
    for name in NAMES:
        (lab.hosts.directory(name) / "go").touch()
    done = lab.reports("ssh", *NAMES, "--bundle", bundle)
    assert [report["result"] for report in done.values()] == ["up"] * 3


def test_a_node_whose_certificate_is_refused_joins_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "REJOIN_S", 0.0)
    bundle = str(lab.bundle())
    lab.reports("ssh", "ws1", "--bundle", bundle)
    lab.master.refuses.add("ws1")
    assert lab.reports("ssh", "ws1", "--bundle", bundle)["ws1"]["changes"] == ["join"]


def test_a_node_that_does_not_come_up_is_a_failure(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "UP_S", 0.0)
    monkeypatch.setattr(lab.master, "agents", set)
    report = lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()), code=1)["ws1"]
    assert (report["step"], report["changes"]) == ("wait", ALL)
    assert "node ws1 is not up after 0 s" in report["reason"]


def joins_another_cluster(lab: Lab, name: str) -> None:
    """The host's agent belongs to another cluster now."""
    tls = lab.hosts.home(name) / "nodes" / name / "tls"
    tls.mkdir(parents=True, exist_ok=True)
    (tls / "joined.json").write_text('{"address": "other.example:7078", "ca": "another", "key": ""}')


def test_a_node_of_another_cluster_is_left_alone(lab: Lab) -> None:
    joins_another_cluster(lab, "ws1")
    report = lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()), code=1)["ws1"]
    assert "a node of another cluster, at other.example:7078" in report["reason"]
    assert not (lab.hosts.directory("ws1") / ".local/opt").exists()


@pytest.mark.parametrize("verb", ["upgrade", "remove"])
@pytest.mark.parametrize("listed", [True, False], ids=["and here, too", "and not here"])
def test_a_node_of_another_cluster_is_neither_upgraded_nor_removed(lab: Lab, verb: str, listed: bool) -> None:
    lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()))
    joins_another_cluster(lab, "ws1")
    if not listed:
        lab.master.refuses.add("ws1")
        lab.master.listed.clear()
    bundle = ["--bundle", str(lab.bundle(version="0.2.0"))] if verb == "upgrade" else []
    report = lab.reports(verb, "ws1", *bundle, code=1)["ws1"]
    assert (report["step"], report["changes"], lab.master.drained) == ("look", [], set())
    assert "a node of another cluster, at other.example:7078" in report["reason"]
    assert lab.master.agent("ws1") == "agent --name ws1"


def test_an_agent_that_belongs_to_no_cluster_and_that_the_master_does_not_know_is_not_ended(lab: Lab) -> None:
    lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()))
    shutil.rmtree(lab.hosts.home("ws1") / "nodes/ws1/tls")
    lab.master.refuses.add("ws1")
    lab.master.listed.clear()
    report = lab.reports("remove", "ws1", code=1)["ws1"]
    assert (report["step"], report["changes"]) == ("look", [])
    assert report["reason"] == "the agent of ws1 that runs there is of another master: end it first"
    assert lab.master.agent("ws1") == "agent --name ws1"


def test_a_host_whose_agent_never_reached_the_master_is_taken_back(lab: Lab) -> None:
    lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()))
    lab.master.refuses.add("ws1")
    lab.master.listed.clear()
    assert lab.reports("remove", "ws1")["ws1"]["changes"] == ["remove"]
    assert lab.master.agent("ws1") == ""


@pytest.mark.parametrize("verb", ["upgrade", "remove"])
def test_a_node_with_a_name_of_its_own_is_found_by_that_name_alone(lab: Lab, tmp_path: Path, verb: str) -> None:
    hostfile = tmp_path / "hosts.txt"
    hostfile.write_text("ws1 --name big\n")
    lab.reports("ssh", "--hostfile", str(hostfile), "--bundle", str(lab.bundle()))
    bundle = ["--bundle", str(lab.bundle(version="0.2.0"))] if verb == "upgrade" else []
    report = lab.reports(verb, "ws1", *bundle, code=1)["ws1"]
    assert (report["step"], report["changes"]) == ("look", [])
    assert report["reason"] == "no node ws1 was deployed there, but big: name it by --name, in a --hostfile"
    done = lab.reports(verb, "--hostfile", str(hostfile), *bundle)["ws1"]
    assert (done["node"], done["result"]) == ("big", "up" if verb == "upgrade" else "removed")


def test_a_node_of_another_host_with_the_same_home_directory_is_none_of_this_host(lab: Lab) -> None:
    own = lab.hosts.home("ws1") / "nodes/ws2"
    own.mkdir(parents=True)
    (own / "launch.sh").touch()
    with (own / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        assert lab.reports("remove", "ws1")["ws1"]["changes"] == []


def test_the_invitation_reaches_the_host_and_no_command_line_environment_or_other_file(lab: Lab) -> None:
    lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()))
    own = lab.hosts.home("ws1") / "nodes/ws1"
    invitation = (own / "invitation").read_text().strip()
    assert invitation.startswith("ebbi_")
    (own / "invitation").unlink()
    assert "sshd" in (own / "seen").read_text()
    for path in lab.hosts.folder.rglob("*"):
        assert not path.is_file() or invitation.encode() not in path.read_bytes(), path


def test_no_token_goes_to_ssh(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBB_TOKEN", SECRET)
    seen = lab.folder / "seen"
    fake = lab.folder / "programs" / "ssh"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\nenv > {seen}\necho "$@" >> {seen}\nexit 255\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    report = lab.reports("ssh", "anna@ws1:2222", "--bundle", str(lab.bundle()), code=1)["anna@ws1:2222"]
    assert report["reason"] == "ssh failed and said nothing"
    text = seen.read_text()
    assert SECRET not in text
    assert text.endswith("-p 2222 -l anna -- ws1 sh -s\n")
    assert "BatchMode=yes" in text


def test_what_a_host_prints_is_bounded_and_made_safe(lab: Lab) -> None:
    lab.hosts.first("ws1", "printf 'evil \\033[2J\\033]0;title\\007 \\342\\200\\256words\\n' >&2; exit 7\n")
    lab.hosts.first("ws2", "exec yes\n")
    lab.hosts.first("ws3", "echo welcome; echo 'ebb-deploy keeper \033[31mx'; exit 0\n")
    result = lab.deploy("ssh", *NAMES, "--bundle", str(lab.bundle()))
    assert result.code == 1
    assert "\033" not in result.out + result.err
    assert "\u202e" not in result.out
    assert "look: printed more than 1048576 bytes" in result.out
    assert re.search("ws1 .*look: evil .*words", result.out)


def test_a_host_whose_key_is_not_known_is_not_trusted(lab: Lab) -> None:
    (lab.hosts.folder / "known_hosts").write_text("")
    report = lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()), code=1)["ws1"]
    assert (report["step"], report["reason"]) == ("connect", "Host key verification failed.")


def test_a_host_with_jobs_is_drained_and_one_without_is_taken_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LOST_S", 5.0)
    bundle = str(lab.bundle())
    lab.reports("ssh", "ws1", "ws2", "--bundle", bundle)
    lab.master.jobs_on["ws2"] = ["17"]
    planned = lab.reports("remove", "ws1", "ws3", "--dry-run")
    assert {name: report["changes"] for name, report in planned.items()} == {
        "ws1": ["drain", "remove", "forget"],
        "ws3": [],
    }
    assert lab.master.drained == set()
    done = lab.reports("remove", *NAMES, code=1)
    assert (done["ws1"]["result"], done["ws1"]["changes"]) == ("removed", ["drain", "remove", "forget"])
    assert (done["ws2"]["step"], done["ws3"]["changes"]) == ("drain", [])
    assert "job 17 is still there" in done["ws2"]["reason"]
    assert lab.master.agent("ws1") == ""
    assert lab.master.agent("ws2") != ""
    assert lab.master.listed == {"ws2"}
    assert list((lab.hosts.directory("ws1") / ".local/opt").iterdir()) == []
    own = lab.hosts.home("ws1") / "nodes/ws1"
    assert sorted(path.name for path in own.iterdir()) == ["agent.lock", "agent.log", "invitation", "seen"]
    assert lab.reports("ssh", "ws1", "--bundle", bundle)["ws1"]["changes"] == ALL


def test_a_host_with_the_only_checkpoints_of_a_job_is_left_as_it_is(lab: Lab) -> None:
    lab.reports("ssh", "ws1", "--bundle", str(lab.bundle()))
    lab.master.keeps["ws1"] = ["17"]
    report = lab.reports("remove", "ws1", code=1)["ws1"]
    assert (report["step"], report["changes"]) == ("drain", [])
    assert "job 17 has its checkpoints there, and nowhere else: cancel it, or" in report["reason"]
    assert (lab.master.agent("ws1"), lab.master.sent("RevokeNode")) == ("agent --name ws1", [])


def test_whoever_is_no_admin_is_refused_before_any_host_is_reached(lab: Lab) -> None:
    lab.master.role = "operator"
    result = lab.deploy("ssh", "ws1", "--bundle", str(lab.bundle()))
    assert (result.code, list(lab.hosts.directory("ws1").iterdir())) == (3, [])
    assert result.complaint == "deploy: ada has the role operator: only an admin lets machines join"


def test_what_is_no_bundle_is_refused(lab: Lab, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.tar.gz"
    wrong.write_text("no archive")
    result = lab.deploy("ssh", "ws1", "--bundle", str(wrong))
    assert (result.code, result.complaint) == (2, f"deploy: --bundle: {wrong}: is no bundle as 'make bundle' writes it")


@pytest.mark.parametrize("place", ["a b", "$(id)", "../x", "a'b", "a;b"])
def test_a_directory_with_other_characters_is_refused(lab: Lab, place: str) -> None:
    result = lab.ebb("deploy", "ssh", "ws1", "--bundle", str(lab.bundle()), "--folder", place)
    assert result.code == 2
    assert "--folder" in result.complaint


def test_a_file_that_is_not_there_is_refused(lab: Lab) -> None:
    bundle = str(lab.bundle())
    for option, words in {"--bundle": ("ws1",), "--hostfile": ("--bundle", bundle)}.items():
        result = lab.ebb("deploy", "ssh", *words, option, "no")
        assert (result.code, result.complaint) == (2, f"deploy: {option}: no: No such file or directory")
    result = lab.ebb("deploy", "remove", "ws1", "--ssh-config", "no")
    assert (result.code, result.complaint) == (2, "deploy: --ssh-config: no is no file")
