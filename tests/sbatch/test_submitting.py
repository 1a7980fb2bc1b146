"""Scripts for Slurm, submitted as they are: what the master is sent."""

from pathlib import Path

import pytest
from ebbtide_protos.v1 import job_pb2

from tests.client.scripted_master import share

SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture(autouse=True)
def scripts_here(monkeypatch):
    monkeypatch.chdir(SCRIPTS)


def sent(master) -> job_pb2.JobSpec:
    return master.sent("Submit")[-1].spec


def test_a_script_is_sent_whole_with_what_its_lines_ask_for(ebb, master):
    result = ebb("submit", "single_gpu.sh", "--fast")
    assert (result.code, result.out, result.err) == (0, "17\n", "")
    spec = sent(master)
    assert (list(spec.command), spec.name, spec.slurm) == (["single_gpu.sh", "--fast"], "resnet", True)
    assert spec.script == (SCRIPTS / "single_gpu.sh").read_text()
    assert (spec.gpus_min, spec.gpus_max, spec.cpus, spec.mem_bytes) == (share(1), share(1), 8, 32 * 2**30)
    assert spec.time_limit_s == 7200


def test_the_variables_that_are_known_at_submit_are_set(ebb, master):
    ebb("submit", "multi_node_torchrun.sh")
    spec = sent(master)
    variables = {name: spec.env[name] for name in spec.env if name.startswith("SLURM_") and "HOST" not in name}
    assert variables == {
        "SLURM_JOB_NAME": "multinode",
        "SLURM_SUBMIT_DIR": str(SCRIPTS),
        "SLURM_NTASKS": "2",
        "SLURM_NPROCS": "2",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPUS_PER_TASK": "4",
    }
    assert (spec.nodes, spec.gpus_min) == (2, share(4))


def test_a_job_without_gpus_in_its_lines_has_none_as_under_slurm(ebb, master):
    ebb("submit", "cpu_preprocess.sh")
    assert (sent(master).gpus_max, sent(master).cpus) == (share(0), 8)
    ebb("submit", "--gpus", "1", "cpu_preprocess.sh")
    assert sent(master).gpus_max == share(1)


def test_a_held_job_is_held_and_a_job_that_may_not_be_requeued_is_not_preempted(ebb, master):
    ebb("submit", "short_forms.sh")
    assert (master.sent("Submit")[-1].hold, sent(master).workdir, sent(master).gpus_min) == (True, "/tmp", share(2))
    ebb("submit", "signal_to_tasks.sh")
    assert (sent(master).suspend, sent(master).signal) == (job_pb2.SUSPEND_MODE_NONE, "SIGUSR1")
    assert sent(master).signal_target == job_pb2.SIGNAL_TARGET_AUTO


def test_the_command_line_and_our_own_lines_win(ebb, master, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#EBB --priority 7\n#SBATCH --gpus=2 -J theirs --time=10\n#EBB --time 3h\n")
    ebb("submit", "--name", "mine", str(script))
    spec = sent(master)
    assert (spec.priority, spec.time_limit_s, spec.name, spec.gpus_min) == (7, 10_800, "mine", share(2))


def test_what_is_not_used_is_said_and_the_job_is_queued(ebb, master, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gpus=1 --account=x\n")
    result = ebb("submit", str(script))
    assert result.code == 0
    assert result.complaint == f"{script}:2: #SBATCH --account: not used: jobs are accounted to their user"


def test_a_value_that_our_own_option_refuses_names_the_line_of_theirs(ebb, master, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gpus=1\n#SBATCH --signal=USR1@99999\n")
    result = ebb("submit", str(script))
    assert (result.code, master.sent("Submit")) == (2, [])
    assert "--grace" in result.complaint
