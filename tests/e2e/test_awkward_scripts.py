"""Scripts that nobody wrote for Ebbtide, through the whole of it: submitted, suspended, resumed, their logs read."""

import filecmp
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cluster import EBB, REPOSITORY, Cluster, wait_for

SCRIPTS = REPOSITORY / "tests" / "scripts"


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """One for all tests here."""
    return shared_cluster


def lines(cluster: Cluster, job: str, start: str) -> list[str]:
    return [line for line in cluster.log(job).splitlines() if line.startswith(start)]


def test_a_cluster_lives_in_a_folder_with_modules_of_the_same_names_as_its_own(
    idle_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started there, and works there, as `ebb` does; then everything is suspended, and comes back."""
    beside = SCRIPTS / "own_modules"
    ebb = [EBB[0], "-P", *EBB[1:]]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*ebb, *arguments], env=idle_cluster.environment, cwd=beside, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("up", "--gpus", "1xRTX4090")
    job = run("submit", "--", "python", "train.py")
    wait_for("it is up", lambda: lines(idle_cluster, job, "up"))
    run("suspend", "--wait", job)
    run("resume", job)
    wait_for("it is up again", lambda: len(lines(idle_cluster, job, "up")) == 2)
    [saved] = [int(line.split()[-1]) for line in lines(idle_cluster, job, "saved")]
    assert [line.split()[-1] for line in lines(idle_cluster, job, "going on")] == ["0", str(saved)]
    [suspension] = idle_cluster.show(job)["suspensions"]
    assert (suspension["checkpointed"], suspension["checkpoint_bytes"]) == ("yes", len(str(saved)))
    assert 0 < suspension["checkpoint_s"] <= suspension["exited"] - suspension["requested"] + 0.5


def test_a_shell_script_for_another_batch_system_is_suspended_by_its_own_signal(cluster: Cluster) -> None:
    script = f"trap 'echo trapped' USR1; python {SCRIPTS / 'traps_and_exits.py'} 0 SIGUSR1"
    job = cluster.submit("--signal", "USR1", "--signal-target", "all", "--", "bash", "-c", f"{script}; echo $?")
    wait_for("it is up", lambda: lines(cluster, job, "up"))
    cluster.ebb("suspend", "--wait", job)
    assert lines(cluster, job, "trapped")
    shown = cluster.show(job)
    assert (shown["state"], shown["suspensions"][0]["checkpointed"]) == ("SUSPENDED", "yes")
    cluster.ebb("resume", job)
    wait_for("it goes on", lambda: len(lines(cluster, job, "going on")) == 2)
    assert lines(cluster, job, "going on")[1].split()[-1] == lines(cluster, job, "saved")[0].split()[-1]
    assert "SIGUSR1 to all" in cluster.ebb("show", job).out


def ends_with_up(log: Path) -> bool:
    """Whether the script has printed all, and goes on."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
        return b"\nup\n" in file.read()


def test_a_hundred_megabytes_of_binary_output_come_back_whole(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("--", "python", str(SCRIPTS / "prints_too_much.py"))
    cluster.wait_for_state(job, "RUNNING")

    log = cluster.home / "nodes" / cluster.node_name() / "attempts" / f"{job}.1" / "output.log"
    wait_for("all is printed", lambda: ends_with_up(log), 60)
    cluster.ebb("suspend", "--wait", job)
    copy = tmp_path / "log"
    with copy.open("wb") as file:
        subprocess.run([*EBB, "logs", job], env=cluster.environment, stdout=file, check=True, timeout=60)
    assert log.stat().st_size > 100_000_000
    assert filecmp.cmp(copy, log, shallow=False)
