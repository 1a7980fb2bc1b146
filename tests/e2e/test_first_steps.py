"""What `ebb init` writes is trained on a cluster, by the commands that it prints, suspended and resumed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
from ebbtide_cli.verbs.init import STARTERS

from tests.e2e.cluster import Cluster
from tests.late import torch

SMALL = {
    "pytorch": "--steps 1500 --width 8 --batch 64",
    "hf": "--steps 60 --width 16 --batch 4",
    "lightning": "--steps 600 --width 64",
    "plain": "--steps 1500 --width 128 --batch 1024",
}
"""Options that make the work of each template small, with enough steps to be suspended on the way."""
TEMPLATES = [pytest.param(name, marks=() if name == "plain" else pytest.mark.slow) for name in STARTERS]


def shell(cluster: Cluster, folder: Path, command: str) -> str:
    """Run a command as a user's shell would; what it printed."""
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=cluster.environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout.strip()


def weights(path: Path) -> dict[str, bytes]:
    """What was trained, bit for bit."""
    if path.suffix == ".npz":
        with numpy.load(path) as saved:
            return {name: saved[name].tobytes() for name in saved}
    return {name: tensor.numpy().tobytes() for name, tensor in torch.load(path, weights_only=True).items()}


def first_steps(cluster: Cluster, folder: Path, template: str) -> list[str]:
    """Write a template into ``folder``; the commands that follow."""
    facts: dict[str, Any] = json.loads(
        shell(cluster, folder.parent, f"ebb init {folder.name} --json --template {template}")
    )
    enter, up, submit = facts["next"]
    assert enter == f"cd {folder.name}"
    assert sorted(facts["files"]) == sorted(str(path.relative_to(folder.parent)) for path in folder.rglob("*.*"))
    return [up, submit]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_suspended_and_ends_with_the_weights_of_a_run_in_peace(
    idle_cluster: Cluster, tmp_path: Path, template: str
) -> None:
    out = "out.npz" if template == "plain" else "out.pt"
    options = f" {SMALL[template]} --log-every 5 --out {out}"
    suspended, peaceful = tmp_path / "suspended", tmp_path / "peaceful"
    up, submit = first_steps(idle_cluster, suspended, template)
    shell(idle_cluster, suspended, f"{up} --gpus 1xA100-40GB")
    submit = submit.replace("ebb submit", "ebb submit --env OMP_NUM_THREADS=1") + options
    job = shell(idle_cluster, suspended, submit)
    shell(idle_cluster, suspended, f"grep -q -m1 -E 'step 5/|loss' < <(ebb logs --follow {job})")
    process = psutil.Process(idle_cluster.show(job)["pid"])
    process.suspend()  # it gets no further until the agent, which asks it to leave, wakes it
    idle_cluster.ebb("suspend", job)
    shell(idle_cluster, suspended, f"ebb suspend --wait {job}")
    assert not (suspended / out).exists()
    shell(idle_cluster, suspended, f"ebb resume {job}; ebb wait {job}")
    assert len(idle_cluster.show(job)["attempts"]) == 2

    first_steps(idle_cluster, peaceful, template)
    shell(
        idle_cluster, peaceful, f"ebb wait $({submit})"
    )  # with the variables of the other, which are not this shell's
    assert weights(suspended / out) == weights(peaceful / out)


def test_up_starts_the_master_with_a_configuration_file_the_next_time_too(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    file, other = tmp_path / "ebbtide.toml", tmp_path / "other.toml"
    file.write_text('[pools.default]\npolicy = "fifo"\n')
    other.touch()
    up = ("up", "--gpus", "none", "--config")
    assert "--config" in idle_cluster.ebb(*up, str(tmp_path / "none.toml"), code=2).err
    for options in ((*up, str(file)), ("up",)):
        assert "started: policy fifo" in idle_cluster.ebb(*options).out
        refused = idle_cluster.ebb(*up, str(other), code=1)
        assert refused.err == f"ebb: up: --config: the master already runs with {file}: 'ebb down' first\n"
        idle_cluster.ebb("down")
    assert "started: policy fitgpp" in idle_cluster.ebb(*up, str(other)).out
