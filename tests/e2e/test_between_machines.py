"""Two homes as two machines: everything between them goes over TLS, and each has to prove itself."""

import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ebbtide_master.tls.authority import Authority
from ebbtide_protos.invitation import Invitation, decode

from tests.certificates import LONG_AGO_S, a_certificate, an_authority, put_server
from tests.docs.test_examples_of_help import EXAMPLES
from tests.e2e.cluster import ANY_ACCOUNT, Cluster, wait_for
from tests.e2e.stage import furnished
from tests.e2e.test_examples_of_help import WITH_TLS, check
from tests.ports import free_ports

pytestmark = pytest.mark.slow

SLEEPS = ("python", "-c", "import time; time.sleep(600)")


@contextmanager
def two_machines(*options: str) -> Iterator[tuple[Cluster, Cluster]]:
    """One with a master that speaks TLS, and a node of its own; the other has nothing yet."""
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        here, there = Cluster(Path(folder) / "login"), Cluster(Path(folder) / "ws2")
        here.ebb("master", "init", "--host", "localhost", "--port", str(free_ports(2)[0]))
        here.up("1xA100-40GB", "--node", "login", *options)
        try:
            yield here, there
        finally:
            here.close()
            there.close()


def join(here: Cluster, there: Cluster, name: str) -> None:
    """As an admin and the owner of a workstation do it."""
    invitation = here.facts("node", "invite", name)["invitation"]
    assert there.facts("agent", "join", invitation, "--name", name)["node"] == name


def attach(here: Cluster, there: Cluster, name: str) -> None:
    start(there, name)
    wait_for(f"{name} is up", lambda: name in here.nodes_up())


def start(there: Cluster, name: str) -> None:
    """Its agent, which runs jobs of whoever runs the tests, even if that is root."""
    there.start_workstation(name, "2xA100-40GB", None, "--min-uid", "0")


def says(machine: Cluster, name: str, words: str) -> None:
    log = machine.home / f"agent-{name}.log"
    wait_for(f"the agent says {words!r}", lambda: words in log.read_text())


def admins(machine: Cluster) -> Invitation:
    """The first admin's invitation."""
    return decode((machine.home / "tls/admin.invitation").read_text())


def of_the_authority(machine: Cluster) -> Authority:
    folder = machine.home / "tls"
    return Authority((folder / "ca.pem").read_text(), (folder / "ca.key").read_text())


def give(machine: Cluster, name: str, own: tuple[str, str]) -> None:
    """Put another key and certificate in the place of a node's."""
    path = machine.home / "nodes" / name / "tls" / "joined.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": own[0], "certificate": own[1]}))


def test_a_second_machine_joins_and_runs_jobs_until_its_certificate_has_expired_and_its_jobs_go_on():
    with two_machines() as (here, there):
        join(here, there, "ws2")
        attach(here, there, "ws2")
        job = here.submit("--gpus", "2", "--", *SLEEPS)  # the login node has one
        here.wait_for_state(job, "RUNNING")
        agent = there.agents.pop()
        agent.kill()
        agent.wait()
        give(there, "ws2", a_certificate(of_the_authority(here), "ws2", age_s=LONG_AGO_S))
        start(there, "ws2")
        says(there, "ws2", "the node's certificate expired on ")
        here.wait_for_state(job, "RUNNING", "UNREACHABLE")
        join(here, there, "ws2")
        wait_for("ws2 is back", lambda: "ws2" in here.nodes_up())
        shown = here.wait_for_state(job, "RUNNING")
        assert len(shown["attempts"]) == 1
        assert "BEGIN" not in here.ebb("master", "init").out
        here.ebb("cancel", job)


def test_the_examples_of_the_help_do_what_they_say(tmp_path):
    """Those for which two machines are needed; each line as it stands, but for names, ports and the invitation."""
    with two_machines() as (here, there):
        lines = [example.line for example in EXAMPLES if any(words in example.line for words in WITH_TLS)]
        stage, other = furnished(here, tmp_path / "here"), furnished(there, tmp_path / "there")
        for line in dict.fromkeys(lines):
            if " && " in line:
                continue  # it serves all of this machine's addresses
            if line.startswith("ebb agent join"):
                invitation = here.ebb("node", "invite", "w1").out.strip()
                line = line.replace("ebbi_eyJhZGRyZXNzIjoi", invitation).replace(" --json", " --name w1 --json")
                check(line, other.perform(line))
            elif "| ebb agent join" in line:
                invitation = stage.perform(line.partition(" | ")[0])
                other.perform(f"echo {invitation.strip()} | {line.partition(' | ')[2]}")
            elif line.startswith("ebb node revoke"):
                here.ebb("node", "invite", "ws2")
                check(line, stage.perform(line))
            else:
                check(line, stage.perform(line.replace("--port 7077", "")))


def test_whoever_has_an_invitation_logs_in_from_another_machine():
    with two_machines() as (here, there):
        invitation = here.ebb("token", "create", "--invite", admins(here).address).out
        there.environment |= {"XDG_CONFIG_HOME": str(there.home / "config"), "HOME": str(there.home)}
        del there.environment["EBB_HOME"]  # while that is set, the last login does not count
        done = there.ebb("login", text=invitation)
        assert "Logged in at localhost:" in done.out
        assert there.facts("nodes")[0]["name"] == "login"
        assert "of another authority" not in there.ebb("ls").err


def test_a_user_elsewhere_needs_the_authority_and_a_token():
    with two_machines() as (here, there):
        invitation = admins(here)
        ask = ("ls", "--master", invitation.address)
        assert "log in there first" in there.ebb(*ask, code=3).err
        ca = there.home / "ca.pem"
        ca.write_text(invitation.ca)
        there.environment |= {"EBB_CA": str(ca)}
        assert "no token was given" in there.ebb(*ask, code=3).err
        there.environment |= {"EBB_TOKEN": invitation.secret}
        there.ebb(*ask)
        ca.write_text(an_authority().certificate.pem)
        assert "of another authority" in there.ebb(*ask, code=3).err
        host, _, port = invitation.address.rpartition(":")
        ca.write_text(invitation.ca)
        agents = f"{host}:{int(port) + 1}"
        assert "its port for agents" in there.ebb("ls", "--master", agents, code=3).err
        put_server(here.home / "tls", of_the_authority(here), ("elsewhere",))
        assert "is for another name (it is for elsewhere)" in there.ebb(*ask, code=3).err
        here.ebb("master", "init")  # puts its names back; nothing has to be restarted
        there.ebb(*ask)


def test_an_agent_with_a_wrong_certificate_says_what_is_wrong_and_gets_nowhere():
    with two_machines() as (here, there):
        join(here, there, "ws2")
        address = json.loads((there.home / "nodes/ws2/tls/joined.json").read_text())["address"]
        wrong = {
            "refuses the node's certificate": a_certificate(an_authority(), "ws2"),
            "it may not speak for node 'ws2'": None,
            "was revoked or replaced": a_certificate(of_the_authority(here), "ws2"),
        }
        for words, own in wrong.items():
            if own is None:
                join(here, there, "ws3")
                member = json.loads((there.home / "nodes/ws3/tls/joined.json").read_text())
                own = (member["key"], member["certificate"])
            give(there, "ws2", own)
            there.start_workstation("ws2", "none")
            says(there, "ws2", words)
            assert here.nodes_up() == {"login"}
            agent = there.agents.pop()
            agent.terminate()
            agent.wait(20)
        unknown = there.ebb("agent", "--name", "ws9", "--master", "192.0.2.1:7078", code=2).err
        assert "join its cluster first ('ebb agent join')" in unknown
        assert address.startswith("127.0.0.1:")


def test_a_node_that_is_revoked_is_gone_until_it_joins_again():
    with two_machines() as (here, there):
        join(here, there, "ws2")
        attach(here, there, "ws2")
        here.ebb("node", "revoke", "ws2")
        wait_for("ws2 is down", lambda: here.nodes_up() == {"login"})
        says(there, "ws2", "was revoked or replaced")
        assert "ws2" in here.ebb("node", "revoke", "ws2", code=1).err
        join(here, there, "ws2")
        wait_for("ws2 is back", lambda: "ws2" in here.nodes_up())


def test_a_master_with_an_authority_stops_and_starts_with_its_cluster():
    with two_machines() as (here, there):
        join(here, there, "ws2")
        assert "has joined the cluster at" in there.ebb("up", "--node", "ws2", code=1).err
        attach(here, there, "ws2")
        here.kill(here.daemon("master"))
        here.ebb("up")
        wait_for("both are back", lambda: here.nodes_up() == {"login", "ws2"})
        here.ebb("down")
        here.ebb("up")
        wait_for("both are back", lambda: here.nodes_up() == {"login", "ws2"})


def test_a_pilot_joins_with_an_invitation_in_a_file_and_gives_its_node_back(tmp_path):
    with two_machines() as (here, there):
        file = tmp_path / "loan"
        file.write_text(here.facts("node", "invite")["invitation"])
        pilot = ("agent", "pilot", "--name", "ws2", "--gpus", "1xA100-40GB", *ANY_ACCOUNT, "--invitation", str(file))
        file.chmod(0o644)
        assert f"others may read it: chmod 600 {file}" in there.ebb(*pilot, code=2).err
        file.chmod(0o600)
        with there.start(*pilot, "--idle", "2s") as running:
            wait_for("ws2 is up", lambda: "ws2" in here.nodes_up())
            assert not file.exists()
            said = running.communicate(timeout=60)
            assert running.returncode == 0, said
        wait_for("ws2 is down", lambda: "ws2" not in here.nodes_up())
        with there.start(*pilot) as running:  # the node has joined, and needs no invitation
            wait_for("ws2 is up again", lambda: "ws2" in here.nodes_up())
            running.send_signal(signal.SIGINT)
            said = running.communicate(timeout=60)
            assert running.returncode == 0, said
