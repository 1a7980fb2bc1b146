"""Canaries: what nobody is to see, looked for in everything that a cluster leaves, shows and logs."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ebbtide_master.store.sqlite import VAULT_NAME
from ebbtide_protos.invitation import decode

from tests.e2e.cluster import Cluster, processes_of, wait_for
from tests.e2e.test_between_machines import admins, start, two_machines
from tests.processes import every_process

KEY = "canary-of-a-key-5d1e"
SCRIPTS_KEY = "canary-of-a-script-81c2"
SCRIPT = "#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH --export=ALL\nsleep 600.75\n"


def files_of(home: Path) -> Iterator[tuple[Path, bytes]]:
    """All regular files, but those that are to hold secrets, which nobody else may read."""
    for path in sorted(home.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        keeps = path.name.startswith(VAULT_NAME) or path == home / "token" or path.name == "logins.json"
        keeps = keeps or (path.name == "intent.json" and path.parent.parent.name == "attempts")
        if keeps:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        else:
            yield path, path.read_bytes()


def command_lines() -> str:
    lines = []
    for process in every_process():
        try:
            lines.append(f"{process.pid} {process.cmdline()}")
        except psutil.Error:
            continue
    return "\n".join(lines)


def all_that_is_shown(cluster: Cluster, jobs: list[str]) -> str:
    """By every verb that tells of jobs; what is in words is in JSON, too."""
    verbs = [("ls", "--all"), ("events",), ("nodes",), ("usage",)]
    verbs += [(verb, job) for job in jobs for verb in ("show", "story", "explain")]
    asked = [cluster.ebb(*verb, "--json", code=None) for verb in verbs]
    return "\n".join(f"{result.out}\n{result.err}" for result in asked)


@pytest.mark.slow
def test_no_secret_is_in_a_log_a_journal_a_command_line_or_an_answer(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_user("bob")
    bobs = cluster.ebb("token", "create", "--user", "bob").out.strip()
    own = (cluster.home / "token").read_text().strip()
    canaries = [KEY, SCRIPTS_KEY, bobs, own]
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)

    secretly = ("--env", f"KEY={KEY}")
    runs = cluster.submit(*secretly, "--", "sleep", "600.75")
    refused = cluster.ebb("submit", *secretly, "--gpus", "99x", "--", "true", code=2)
    fails = cluster.submit(*secretly, "--hold", "--", "no-such-program")
    cluster.ebb("release", fails)
    array = cluster.submit(*secretly, "--array", "1-2", "--gpus", "1", "--", "sleep", "600.75")
    killed = cluster.submit(*secretly, "--cpu-only", "--", "sleep", "600.75")
    cluster.environment["SCRIPTS_KEY"] = SCRIPTS_KEY
    of_script = cluster.submit(str(script))
    cluster.environment.pop("SCRIPTS_KEY")
    for job in (runs, killed, of_script):
        cluster.wait_for_state(job, "RUNNING")
    cluster.wait_for_state(fails, "FAILED")
    inside = cluster.ebb("exec", of_script, "--", "printenv", "SCRIPTS_KEY").out
    assert inside.strip() == SCRIPTS_KEY, "the canaries are there"

    lives = processes_of(cluster.home)
    supervisors = [process for process in lives if process.name().startswith("ebb:")]
    assert not any(canary in command_lines() for canary in canaries)
    daemons = [cluster.daemon("master"), cluster.daemon(cluster.node_name()), *supervisors]
    assert not any(KEY in str(daemon.environ()) for daemon in daemons)
    attempt = cluster.home / "nodes" / cluster.node_name() / "attempts" / f"{killed}.1"
    record = json.loads((attempt / "supervisor.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)  # what it was doing is lost; what is told of it must not say more
    wait_for("the loss is told", lambda: len(cluster.show(killed)["attempts"]) > 1)
    unknown = dict(cluster.environment) | {"EBB_TOKEN": f"{bobs}x"}
    cluster.environment, before = unknown, cluster.environment
    wrong = cluster.ebb("ls", code=3)
    cluster.environment = before | {"EBB_TOKEN": bobs}
    shown = all_that_is_shown(cluster, [f"{array}.1", killed])
    cluster.environment = before
    shown += all_that_is_shown(cluster, [runs, fails, of_script]) + str(refused) + str(wrong)
    assert not any(canary in shown for canary in canaries)

    def found() -> list[str]:
        kept = [(path, content) for path, content in files_of(cluster.home)]
        return [f"{canary} in {path}" for path, content in kept for canary in canaries if canary.encode() in content]

    assert found() == []
    cluster.ebb("requeue", runs)
    cluster.ebb("down", "--now")
    assert found() == []


@pytest.mark.slow
def test_what_lets_a_machine_or_a_person_in_is_where_it_was_handed_over_and_nowhere_else() -> None:
    with two_machines() as (here, there):
        invitation = here.facts("node", "invite", "ws2")["invitation"]
        joining, administering = decode(invitation).secret, admins(here).secret
        there.ebb("agent", "join", "--name", "ws2", text=invitation)
        start(there, "ws2")
        wait_for("ws2 is up", lambda: "ws2" in here.nodes_up())
        here.wait_for_state(here.submit("--gpus", "2", "--", "sleep", "600.75"), "RUNNING")
        canaries = [joining, administering, invitation]
        assert not any(canary in command_lines() for canary in canaries)
        shown = all_that_is_shown(here, ["1"]) + str(
            there.ebb("agent", "join", "--name", "ws2", text=invitation, code=None)
        )
        assert not any(canary in shown for canary in canaries)
        handed_over = here.home / "tls" / "admin.invitation"
        kept = [(path, content) for home in (here.home, there.home) for path, content in files_of(home)]
        found = {path for path, content in kept for canary in canaries if canary.encode() in content}
        assert found <= {handed_over}
        assert stat.S_IMODE(handed_over.stat().st_mode) == 0o600
