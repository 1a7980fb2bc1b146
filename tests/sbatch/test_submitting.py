"""Scripts for Slurm, submitted as they are: what the master is sent."""

from pathlib import Path

import pytest
from ebbtide_protos.v1 import job_pb2

from tests.client.scripted_master import make_job, share
from tests.sbatch.test_translation import REFUSED, TRANSLATED

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
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPUS_PER_TASK": "4",
    }
    assert (spec.nodes, spec.gpus_min) == (2, share(4))


@pytest.mark.parametrize(
    ("lines", "typed", "said"),
    [
        ([], [], ["job.sh", None, None]),
        (["#SBATCH -J theirs -p a,b --mem=4G"], [], ["theirs", "a", "4096"]),
        (["#SBATCH -J theirs -p a --mem=4G", "#EBB --name ours --mem 2GiB"], [], ["ours", "a", "2048"]),
        (["#SBATCH -J theirs -p a"], ["--name", "mine", "--pool", "b", "--mem", "1GiB"], ["mine", "b", "1024"]),
        (["#SBATCH -J theirs -p a"], ["--name", "mine", "--env", "SLURM_JOB_NAME=x"], ["x", "a", None]),
    ],
)
@pytest.mark.parametrize("verb", ["submit", "run"])
def test_variables_say_what_the_job_asks_for_wherever_it_does_so(ebb, master, tmp_path, verb, lines, typed, said):
    script = tmp_path / "job.sh"
    script.write_text("\n".join(["#!/bin/sh", "#SBATCH --gpus=1", *lines, "true\n"]))
    master.add(make_job("17", "COMPLETED", exit_code=0, start_time=1.0, end_time=2.0))
    assert ebb(verb, *typed, str(script)).code == 0
    names = ("SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_MEM_PER_NODE")
    assert [sent(master).env.get(name) for name in names] == said


@pytest.mark.parametrize(
    ("lines", "typed", "said"),
    [
        ("-N 1-4 --gpus=8", [], {}),
        ("-N 1-4 --gpus=8 --ntasks-per-node=1", [], {"SLURM_NTASKS_PER_NODE": "1"}),
        ("-N 2 --ntasks-per-node=1 --gres=gpu:4", ["--nodes", "4", "--gpus", "16"], {"SLURM_NTASKS_PER_NODE": "1"}),
        ("-N 2 --ntasks-per-node=4 --gres=gpu:4 --gpus-per-task=1", [], {"SLURM_NTASKS_PER_NODE": "4"}),
        ("-N 2 -n 6", [], {"SLURM_NTASKS": "6"}),
        ("--gpus=4 --gpus-per-task=2", [], {"SLURM_NTASKS": "2"}),
        ("--gpus=4 --ntasks-per-gpu=2", [], {"SLURM_NTASKS": "8"}),
    ],
)
def test_the_number_of_tasks_is_sent_only_if_the_script_says_it(ebb, master, tmp_path, lines, typed, said):
    """Otherwise it follows from the nodes that the job gets, which only they know."""
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH {lines}\nsrun python train.py\n")
    assert ebb("submit", *typed, str(script)).code == 0
    counts = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    assert {name: value for name, value in sent(master).env.items() if name in counts} == said


@pytest.mark.parametrize("option", ["--venv", "--conda"])
def test_a_script_runs_in_the_environment_that_is_named_while_another_is_active(ebb, master, monkeypatch, option):
    for name in ("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME"):
        monkeypatch.setenv(name, "/envs/active")
    monkeypatch.setenv("CONDA_SHLVL", "2")
    monkeypatch.setenv("DATA", "/data")
    assert ebb("submit", option, "/envs/wanted", "single_gpu.sh").code == 0
    assert (sent(master).python_env, sent(master).env["DATA"]) == ("/envs/wanted", "/data")
    assert "/envs/active" not in sent(master).env.values()


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


def needs(spec: job_pb2.JobSpec) -> dict[str, list[str]]:
    """Which nodes and GPUs will do, as far as the script says."""
    found = {"gpu_types": spec.needs.gpu_types, "on": spec.needs.on, "exclude": spec.needs.exclude}
    return {name: list(values) for name, values in found.items() if values}


@pytest.mark.parametrize("name", TRANSLATED)
def test_every_script_that_is_not_refused_is_submitted_as_it_is(ebb, master, name):
    assert ebb("submit", f"{name}.sh").code == 0
    assert sent(master).script == (SCRIPTS / f"{name}.sh").read_text()


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_script_is_not_submitted(ebb, master, name):
    result = ebb("submit", f"{name}.sh")
    assert (result.code, master.sent("Submit")) == (2, [])
    assert result.complaint.startswith(REFUSED[name])


def test_arrays_have_their_tasks_and_files_their_names(ebb, master):
    ebb("submit", "array_limit.sh")
    (request,) = master.sent("Submit")
    assert (len(request.tasks), request.max_concurrent) == (10, 2)
    assert request.spec.output == "logs/%x_%A_%a.out"
    ebb("submit", "array_shards.sh")
    request = master.sent("Submit")[-1]
    assert [task.index for task in request.tasks] == [1, 5, 9, 13, 20]
    assert request.spec.env["SLURM_ARRAY_TASK_COUNT"] == "5"


@pytest.mark.parametrize(
    ("typed", "count"),
    [(["--array", "0-3"], "4"), (["--array", "1,1,2"], "2"), (["--param", "lr=1,2,3"], "3"), ([], None)],
)
def test_the_tasks_of_an_array_are_counted_however_it_was_asked_for(ebb, master, typed, count):
    ebb("submit", *typed, "single_gpu.sh")
    assert sent(master).env.get("SLURM_ARRAY_TASK_COUNT") == count
    if typed[:1] == ["--array"]:
        ebb("submit", *typed, "array_limit.sh")
        assert sent(master).env["SLURM_ARRAY_TASK_COUNT"] == count


def test_dependencies_pools_and_needs_are_ours(ebb, master):
    ebb("submit", "dependency_pipeline.sh")
    ok, any_end = job_pb2.AFTER_KIND_OK, job_pb2.AFTER_KIND_ANY
    assert [(one.job_id, one.kind) for one in sent(master).after] == [("12", ok), ("13", ok), ("14", any_end)]
    ebb("submit", "conda_module.sh")
    assert (sent(master).pool, needs(sent(master)), sent(master).env["HF_HOME"]) == (
        "gpu", {"gpu_types": ["v100"]}, "/scratch/hf",
    )  # fmt: skip
    ebb("submit", "constraint.sh")
    assert needs(sent(master)) == {"gpu_types": ["a100", "h100"], "on": ["gpu-1", "gpu-2"]}
    ebb("submit", "exclusive_nodes.sh")
    assert needs(sent(master)) == {"exclude": ["node03", "node04", "node05", "node17"]}
    assert (sent(master).nodes, sent(master).gpus_min) == (4, share(32))


def test_mail_is_a_notice_and_a_time_to_begin_is_one_from_now(ebb, master):
    result = ebb("submit", "mail.sh")
    spec = sent(master)
    assert (spec.output, spec.begin_at > 0, len(spec.notify)) == ("paper-%j.out", True, 1)
    assert "stderr goes where stdout goes" in result.err
