"""Jobs step aside and come back, on this workstation or another, on as many GPUs or not."""

import re
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import EXAMPLES, Cluster, wait_for

COUNTING = (sys.executable, str(Path(__file__).with_name("rank.py")))

SHOW_KEYS = {
    "id", "name", "user", "state", "reason", "held_by", "class", "preemptible", "priority", "pool", "gpus",
    "gpu_mem_bytes", "nodes", "gpu_uuids", "attempt", "preemptions", "resizes", "restarts", "progress", "submit_time",
    "start_time", "end_time", "waiting_s", "running_s", "exit_code", "checkpoint", "suspensions",
}  # fmt: skip


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """One for all tests here."""
    return shared_cluster


def steps_of(log: str) -> list[int]:
    """The step numbers that a job printed."""
    return [int(step) for step in re.findall(r"^step (\d+)", log, re.MULTILINE)]


def resumed_at(log: str) -> list[int]:
    """The steps from which it said that it went on."""
    return [int(step) for step in re.findall(r"^resumed from step (\d+)", log, re.MULTILINE)]


def example(name: str, *options: str) -> list[str]:
    """The command line of an example."""
    return ["python", str(EXAMPLES / f"{name}.py"), *options]


@pytest.mark.parametrize(
    ("name", "submit", "run", "resize"),
    [
        pytest.param("digits", [], ["--steps", "100000", "--log-every", "1"], "2", marks=pytest.mark.slow),
        pytest.param("charlm", [], ["--steps", "100000", "--log-every", "1"], "2", marks=pytest.mark.slow),
        pytest.param(
            "digits_ddp",
            ["--gpus", "1", "--launch", "ddp"],
            ["--steps", "100000", "--log-every", "1"],
            "2",
            marks=pytest.mark.slow,
        ),
        ("plain", [], ["--steps", "100000", "--log-every", "1"], "2"),
    ],
)
def test_each_example_goes_on_where_it_left_off(
    cluster: Cluster, tmp_path: Path, name: str, submit: list[str], run: list[str], resize: str
) -> None:
    own = ["--checkpoint", str(tmp_path / "state")] if name == "plain" else []
    job = cluster.submit("--name", name, *submit, "--", *example(name, *run, *own))
    wait_for("it has trained", lambda: len(steps_of(cluster.log(job))) > 5)
    cluster.ebb("suspend", "--wait", job)
    first = cluster.log(job)
    cluster.ebb("resize", job, "--gpus", resize)
    cluster.ebb("resume", job)
    wait_for("it goes on", lambda: len(steps_of(cluster.log(job))) > len(steps_of(first)) + 5)
    shown = cluster.wait_for_state(job, "RUNNING")
    cluster.ebb("cancel", "--now", "--wait", job)

    assert shown.keys() >= SHOW_KEYS
    assert (shown["attempt"], shown["gpus"]["allocated"]) == (2, int(resize))
    assert len(set(shown["gpu_uuids"])) == int(resize)
    [suspension] = shown["suspensions"]
    assert suspension["checkpointed"] == ("unknown" if name == "plain" else "yes")
    times = [suspension[key] for key in ("requested", "exited", "gpu_free", "resumed")]
    assert times == sorted(times)
    log = cluster.log(job)
    [resume] = resumed_at(log)
    before, after = steps_of(first), steps_of(log)[len(steps_of(first)) :]
    assert before == list(range(before[0], before[0] + len(before)))
    assert after == list(range(resume + 1, resume + 1 + len(after)))
    assert resume == before[-1]


@pytest.mark.slow
def test_a_job_suspended_on_one_workstation_resumes_on_the_other(idle_cluster: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    idle_cluster.up("none", "--node", "head")
    idle_cluster.add_workstation("left", "1xRTX4090", shared)
    idle_cluster.add_workstation("right", "1xRTX3090", shared)
    job = idle_cluster.submit("--", *example("digits", "--steps", "100000", "--log-every", "1"))
    idle_cluster.wait_for_step(job, 5)
    [home] = idle_cluster.show(job)["nodes"]
    idle_cluster.ebb("suspend", "--wait", job)
    other = "right" if home == "left" else "left"
    blocker = idle_cluster.submit("--suspend", "none", "--", "sleep", "600")
    if idle_cluster.wait_for_state(blocker, "RUNNING")["nodes"] != [home]:
        idle_cluster.submit("--suspend", "none", "--", "sleep", "600")
        idle_cluster.ebb("cancel", "--now", "--wait", blocker)
    idle_cluster.ebb("resume", job)
    wait_for("it goes on", lambda: resumed_at(idle_cluster.log(job)))
    shown = idle_cluster.show(job)
    assert shown["nodes"] == [other]
    assert shown["checkpoint"]["path"].startswith(str(shared))


def test_without_a_shared_root_it_waits_for_its_own_workstation(idle_cluster: Cluster, tmp_path: Path) -> None:
    idle_cluster.up("none", "--node", "head")
    idle_cluster.add_workstation("left", "1xRTX4090", tmp_path / "left")
    idle_cluster.add_workstation("right", "1xRTX4090", tmp_path / "right")
    job = idle_cluster.submit("--", "sleep", "600")
    [home] = idle_cluster.wait_for_state(job, "RUNNING")["nodes"]
    idle_cluster.ebb("suspend", "--wait", job, code=4)
    blocker = idle_cluster.submit("--suspend", "none", "--", "sleep", "600")
    if idle_cluster.wait_for_state(blocker, "RUNNING")["nodes"] != [home]:
        idle_cluster.submit("--suspend", "none", "--", "sleep", "600")
        idle_cluster.ebb("cancel", "--now", "--wait", blocker)
    idle_cluster.ebb("resume", job)
    assert "checkpoint" in wait_for("why it waits", lambda: _reason_with(idle_cluster, job, "waiting for"))


def test_an_urgent_job_preempts_and_the_victim_comes_back(cluster: Cluster) -> None:
    victims = [cluster.submit("--name", f"long-{n}", "--launch", "ddp", "--", *COUNTING) for n in range(4)]
    for victim in victims:
        cluster.wait_for_step(victim, 3)
    urgent = cluster.submit("--te", "--", "true")
    assert cluster.wait_for_state(urgent, "COMPLETED")["waiting_s"] < 60
    [preempted] = [shown for victim in victims if (shown := cluster.show(victim))["preemptions"]]
    assert preempted["suspensions"][0]["reason"] == f"preempted by job {urgent}"
    assert preempted["suspensions"][0]["checkpointed"] == "yes"
    back = cluster.wait_for_state(preempted["id"], "RUNNING")
    assert back["attempt"] == 2


def test_a_script_that_ignores_the_signal_dies_at_the_end_of_its_grace_period(cluster: Cluster) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    job = cluster.submit("--grace", "2s", "--", "sh", "-c", stubborn)
    wait_for("it has set its trap", lambda: "ready" in cluster.log(job))
    told = cluster.ebb("suspend", "--wait", job, code=4).out
    assert "; not saved: what it did since it last saved by itself will be repeated (" in told
    [suspension] = cluster.show(job)["suspensions"]
    assert 2.0 <= suspension["exited"] - suspension["requested"] < 30.0
    assert suspension["checkpointed"] == "no"


def _reason_with(cluster: Cluster, job: str, words: str) -> str | None:
    reason: str = cluster.show(job)["reason"]
    return reason if words in reason else None


@pytest.mark.slow
def test_a_running_job_is_resized_by_its_user_without_losing_a_step(cluster: Cluster) -> None:
    command = example("digits_ddp", "--steps", "100000", "--log-every", "1")
    job = cluster.submit("--gpus", "1", "--launch", "ddp", "--", *command)
    cluster.wait_for_step(job, 5)
    cluster.ebb("resize", "--wait", job, "--gpus", "2")
    wait_for("it goes on", lambda: resumed_at(cluster.log(job)))
    log, shown = cluster.log(job), cluster.show(job)
    assert (shown["attempt"], shown["resizes"], shown["preemptions"]) == (2, 1, 0)
    assert shown["gpus"] == {"min": 2, "max": 2, "allocated": 2}
    assert shown["suspensions"][0]["reason"] == "resized by user: 1 GPU to 2 GPUs"
    assert re.findall(r"^world size (\d)", log, re.MULTILINE) == ["1", "2"]
    [resume] = resumed_at(log)
    before, after = log.split("resumed from")
    assert steps_of(before)[-1] == resume
    assert steps_of(after)[:3] == [resume + 1, resume + 2, resume + 3][: len(steps_of(after))]
