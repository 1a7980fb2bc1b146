"""`ebb submit`: what is sent, what is refused before anything is sent, and the exit codes of --wait."""

import os
import pwd
import re
import signal

import grpc
import pytest
from ebbtide_cli.submitting import passing
from ebbtide_protos.v1 import client_pb2, job_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.runs import UNHURRIED, run_on_terminal, start_ebb
from tests.client.scripted_master import make_job, share
from tests.drawing import share_of


def sent_spec(master) -> job_pb2.JobSpec:
    (request,) = master.sent("Submit")
    return request.spec


def test_submit_prints_the_id_and_nothing_else(ebb, master):
    result = ebb("submit", "--", "python", "-m", "train")
    assert (result.code, result.out, result.err) == (0, "17\n", "")
    assert ebb("submit", "--json", "--", "true").json == {
        "id": "17", "warnings": [], "class": "be", "gpu_mem_bytes": None, "gpu_mem_from": None,
        "begin_time": None, "tasks": None, "params": None,
    }  # fmt: skip


def test_what_earlier_runs_used_is_said_beside_the_id(ebb, master):
    master.learned = client_pb2.SubmitReply(gpu_mem_bytes=9 << 29, gpu_mem_from="from its last 5 runs")
    result = ebb("submit", "--gpus", "1/4", "--", "python", "-m", "train")
    assert (result.code, result.out) == (0, "17\n")
    assert result.complaint == "4.5GiB of GPU memory, from its last 5 runs; --gpu-mem asks for another"
    told = ebb("submit", "--json", "--gpus", "1/4", "--", "true")
    assert (told.json["gpu_mem_bytes"], told.json["gpu_mem_from"]) == (9 << 29, "from its last 5 runs")
    assert told.err == ""


def test_the_defaults_are_those_of_the_design(ebb, master, monkeypatch):
    ebb("submit", "--", "python", "-u", "src/train.py", "--lr", "3e-4")
    spec = sent_spec(master)
    assert list(spec.command) == ["python", "-u", "src/train.py", "--lr", "3e-4"]
    assert (spec.name, spec.workdir) == ("train.py", os.getcwd())
    assert (spec.gpus_min, spec.gpus_max, spec.gpu_mem_bytes) == (share(1), share(1), 0)
    assert (spec.job_class, spec.priority, spec.grace_s) == (job_pb2.JOB_CLASS_BEST_EFFORT, 42, 180)
    assert (spec.weight, spec.group, spec.cold) == (1.0, "", False)
    assert not spec.HasField("time_limit_s")
    assert (spec.suspend, spec.launch) == (job_pb2.SUSPEND_MODE_CHECKPOINT, job_pb2.LAUNCH_MODE_SINGLE)
    assert (spec.retries, spec.exit_zero, spec.signal) == (0, job_pb2.EXIT_ZERO_SUSPENDED, "SIGTERM")


def test_a_job_is_named_after_its_script_as_far_as_the_limit_goes(ebb, master):
    for argv, name in (["/usr/bin/env", "env"], ["./訓" + "練" * 60 + ".py", "訓" + "練" * 41]):
        ebb("submit", "--", argv)
        assert master.sent("Submit")[-1].spec.name == name


def test_every_option_reaches_the_master(ebb, master):
    options = (
        "--name n --gpus 1/4-2 --gpu-mem 10GiB --cpus 2.5 --mem 16GiB --te --priority 7 --grace 90s --time 2h"
        " --weight 2.5 --group vision --suspend none --launch single --retries 3 --exit0 completed --signal usr1"
        " --signal-target all --resume-args=--resume={checkpoint} --no-warm"
        " --workdir /tmp/../srv --hold"
    )
    assert ebb("submit", *options.split(), "--", "true").code == 0
    (request,) = master.sent("Submit")
    spec = request.spec
    assert request.hold
    assert (spec.name, spec.workdir, spec.signal) == ("n", "/srv", "SIGUSR1")
    assert (spec.gpus_min, spec.gpus_max) == (share(1, 4), share(2))
    assert (spec.gpu_mem_bytes, spec.cpus, spec.mem_bytes) == (10 * 2**30, 2.5, 16 * 2**30)
    assert (spec.job_class, spec.priority) == (job_pb2.JOB_CLASS_TRIAL_AND_ERROR, 7)
    assert (spec.weight, spec.group) == (2.5, "vision")
    assert (spec.grace_s, spec.time_limit_s, spec.retries) == (90, 7200, 3)
    assert (spec.suspend, spec.exit_zero) == (job_pb2.SUSPEND_MODE_NONE, job_pb2.EXIT_ZERO_COMPLETED)
    assert (spec.signal_target, spec.cold) == (job_pb2.SIGNAL_TARGET_ALL, True)
    assert list(spec.resume_args) == ["--resume={checkpoint}"]


def test_resume_arguments_are_split_as_a_shell_would_and_keep_braces_that_are_the_scripts_own(ebb, master):
    text = "--from '{checkpoint}/last one' +a={b:1} ${seed} ${now:%Y} {output}"
    assert ebb("submit", "--resume-args", text, "--", "true").code == 0
    words = ["--from", "{checkpoint}/last one", "+a={b:1}", "${seed}", "${now:%Y}", "{output}"]
    assert list(sent_spec(master).resume_args) == words


def test_a_ddp_job_may_begin_on_a_share_of_a_gpu(ebb, master):
    ebb("submit", "--launch", "ddp", "--gpus", "1/4-2", "--", "train.py")
    assert sent_spec(master).launch == job_pb2.LAUNCH_MODE_DDP


def test_a_ddp_job_is_one(ebb, master):
    ebb("submit", "--launch", "ddp", "--gpus", "2", "--", "train.py")
    assert sent_spec(master).launch == job_pb2.LAUNCH_MODE_DDP


def test_a_job_that_may_be_spread_has_a_range_of_nodes(ebb, master):
    ebb("submit", "--nodes", "1-3", "--gpus", "1-4", "--move-checkpoints", "--", "train.py")
    spec = sent_spec(master)
    assert (spec.nodes, spec.max_nodes, spec.gpus_max, spec.move_checkpoints) == (1, 3, share(4), True)


def test_a_job_on_several_nodes_has_one_gpu_on_each_unless_told_otherwise(ebb, master):
    ebb("submit", "--nodes", "2", "--", "train.py")
    assert (sent_spec(master).nodes, sent_spec(master).gpus_min, sent_spec(master).gpus_max) == (2, share(2), share(2))
    ebb("submit", "--nodes", "2", "--gpus", "8", "--", "train.py")
    assert (master.sent("Submit")[-1].spec.nodes, master.sent("Submit")[-1].spec.gpus_min) == (2, share(8))


def test_a_job_without_gpus_is_spelled_cpu_only(ebb, master):
    ebb("submit", "--cpu-only", "--", "true")
    assert (sent_spec(master).gpus_min, sent_spec(master).gpus_max) == (share(0), share(0))
    assert ebb("submit", "--cpu-only", "--gpus", "1", "--", "true").code == 2


def test_only_a_few_variables_are_inherited(ebb, master, monkeypatch):
    for name in set(os.environ) - {"EBB_HOME", "EBB_MASTER"}:
        monkeypatch.delenv(name)
    inherited = {"PATH": "/bin", "HOME": "/h", "LANG": "C", "VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"}
    for name, value in (inherited | {"SECRET": "s", "PATHS": "p", "TOKEN": "t"}).items():
        monkeypatch.setenv(name, value)
    ebb("submit", "--env", "TOKEN", "--env", "A=b=c", "--env", "LANG=de", "--env", "EMPTY=", "--", "true")
    assert dict(sent_spec(master).env) == inherited | {"TOKEN": "t", "A": "b=c", "LANG": "de", "EMPTY": ""}


def test_all_variables_go_along_when_asked_but_for_those_of_the_terminal_and_ebbs_own(ebb, master, monkeypatch):
    """PYTHONPATH, LD_LIBRARY_PATH and HF_HOME could only be passed one by one."""
    for name in set(os.environ) - {"EBB_HOME", "EBB_MASTER", "XDG_CONFIG_HOME"}:
        monkeypatch.delenv(name)
    wanted = {"PATH": "/bin", "PYTHONPATH": "/src", "HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache", "A": "1"}
    ours = {"EBB_TOKEN": "ebb_1_secret", "EBB_DEBUG": "", "SSH_TTY": "t", "PWD": "/", "BASH_FUNC_f%%": "() {"}
    for name, value in (wanted | ours).items():
        monkeypatch.setenv(name, value)
    assert ebb("submit", "--env-all", "--env", "A=2", "--", "true").code == 0
    assert dict(sent_spec(master).env) == wanted | {"A": "2", "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}


def test_what_the_configuration_names_goes_along_always(ebb, master, home, monkeypatch):
    for name in set(os.environ) - {"EBB_HOME", "EBB_MASTER", "XDG_CONFIG_HOME"}:
        monkeypatch.delenv(name)
    everybodys, own = home / "all.toml", home / "config/ebbtide/submit.toml"
    own.parent.mkdir(parents=True)
    everybodys.write_text('env_pass = ["HF_*"]\n')
    own.write_text('env_pass = ["PYTHONPATH", "EBB_*"]\n')
    monkeypatch.setattr(passing, "FOR_ALL", everybodys)
    wanted = {"HF_HOME": "/hf", "HF_TOKEN": "t", "PYTHONPATH": "/src"}
    for name, value in (wanted | {"EBB_TOKEN": "ebb_1_secret", "OTHER": "x"}).items():
        monkeypatch.setenv(name, value)
    assert ebb("submit", "--", "true").code == 0
    assert dict(sent_spec(master).env) == wanted


@pytest.mark.parametrize("content", ['env_pass = "HF_*"', "env_pass = [1]", "other = 1", "env_pass = [", "\0"])
def test_a_configuration_that_is_wrong_is_one_line_that_names_it(ebb, master, home, content):
    own = home / "config/ebbtide/submit.toml"
    own.parent.mkdir(parents=True)
    own.write_text(content)
    result = ebb("submit", "--", "true")
    assert (result.code, master.requests) == (2, [])
    assert result.complaint.startswith(f"{own}: ")


def test_somebody_at_a_terminal_is_told_what_the_job_does_not_get(master, monkeypatch):
    """A PYTHONPATH that is lost without a word was one of the first things that newcomers met."""
    for name in [name for name in os.environ if re.fullmatch(passing.MISSED, name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", "/src")
    monkeypatch.setenv("HF_HOME", "/hf")
    told = run_on_terminal("submit", "--te", "--", "true", columns=400, streams=("stderr",)).out
    assert told.startswith(
        "ebb: set here, and not passed on to the job: HF_HOME, PYTHONPATH (--env NAME, --env-all, or"
    )
    told = run_on_terminal("submit", "--te", "--env", "HF_HOME", "--env-all", "--", "true", streams=("stderr",)).out
    assert told == ""
    monkeypatch.delenv("HF_HOME")
    monkeypatch.delenv("PYTHONPATH")
    assert run_on_terminal("submit", "--te", "--", "true", streams=("stderr",)).out == ""


READS = """#!/bin/bash
export OMP_NUM_THREADS=4
export LR=${LR:-0.1}
echo $OMP_NUM_THREADS $HOME ${SEED}
"""


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("run.sh", READS, "LR, SEED"),
        ("train.py", "import os\nos.environ['SEED'], os.getenv('LR', 1), os.environ.get('OTHER')\n", "LR, SEED"),
        ("run.sh", "#!/bin/sh\nSEED=1; LR=2\nSEED=3\necho $SEED\n", ""),
        ("train.py", "print('LR', 'SEED')\n", ""),
    ],
)
def test_variables_that_a_script_reads_and_does_not_get_are_named(
    ebb, master, tmp_path, monkeypatch, file, text, named
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(text)
    for name in ("LR", "SEED", "OMP_NUM_THREADS", "UNREAD"):
        monkeypatch.setenv(name, "8")
    command = ["--", "python", file] if file.endswith(".py") else [file]
    told = ebb("submit", "--te", *command).err
    assert told.startswith(
        f"ebb: the script reads {named}, set here and not passed on to the job (--env" if named else ""
    )
    assert bool(told) == bool(named)
    assert ebb("submit", "--te", "--env", "LR", "--env", "SEED", *command).err == ""


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("trap 'rm -rf $TMP' EXIT INT TERM", 2),
        ('set -e\ntrap "rm -rf x" SIGTERM EXIT', 3),
        ("tidy() {\n  rm -rf x\n}\ntrap 'tidy' 15 0", 5),
        ("trap 'rm -rf x; exit 1' EXIT TERM", 0),
        ("tidy() {\n  rm -rf x\n  exit\n}\ntrap 'tidy' EXIT TERM", 0),
        ("trap 'rm -rf x' EXIT", 0),
        ("trap 'echo trapped' TERM\npython train.py\nexit $?", 0),
        ("trap '' EXIT TERM", 0),
    ],
)
def test_a_trap_after_which_a_script_would_go_on_is_named(ebb, master, tmp_path, monkeypatch, lines, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{lines}\n")
    told = ebb("submit", "--te", "run.sh").err
    assert told.startswith(f"ebb: run.sh, line {line}: this trap returns, so that" if line else "")
    assert bool(told) == bool(line)


def test_the_nodes_sdk_may_be_left_out(ebb, master):
    ebb("submit", "--", "true")
    ebb("submit", "--no-sdk", "--", "true")
    assert [request.spec.no_sdk for request in master.sent("Submit")] == [False, True]


@pytest.mark.parametrize(
    "command",
    [
        ["--no-sdk", "--", "python", "train.py"],
        ["--", "python", "-I", "train.py"],
        ["--", "python3.12", "-u", "-E", "train.py"],
        ["--", "docker", "run", "image", "python", "train.py"],
    ],
)
def test_where_the_sdk_cannot_be_found_the_submit_says_how_to_install_it(ebb, master, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    install(monkeypatch, tmp_path / "bin", "python3.12", "docker")
    (tmp_path / "train.py").write_text("import os\nimport ebbtide.torch as ebt\n")
    result = ebb("submit", *command)
    assert (result.code, result.out) == (0, "17\n")
    assert result.complaint.startswith("train.py imports ebbtide, which is found only if it is installed there")
    assert "pip install --no-deps" in result.complaint


def install(monkeypatch, folder, *programs):
    """Have programs of these names on the PATH."""
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_nothing_is_said_of_the_sdk_where_it_is_found_or_not_wanted(ebb, master, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    install(monkeypatch, tmp_path / "bin", "torchrun")
    (tmp_path / "train.py").write_text("from ebbtide import job\n")
    (tmp_path / "plain.py").write_text("# import ebbtide\n")
    for command in (["python", "-u", "train.py", "-I"], ["torchrun", "train.py"], ["python", "-I", "plain.py"]):
        assert ebb("submit", "--", *command).err == ""


def test_the_account_submits_whatever_the_environment_says(ebb, master, monkeypatch):
    monkeypatch.setenv("USER", "root-of-all-evil")
    ebb("submit", "--", "true")
    (request,) = master.sent("Submit")
    assert request.user == pwd.getpwuid(os.getuid()).pw_name


def test_options_behind_the_command_are_the_commands(ebb, master):
    ebb("submit", "train", "--gpus", "9", "--nonsense")
    assert list(sent_spec(master).command) == ["train", "--gpus", "9", "--nonsense"]
    assert sent_spec(master).gpus_max == share(1)


BAD_INPUTS = [
    (["--nonsense", "--", "true"], "--nonsense"),
    (["--gpus", "0", "--", "true"], "--cpu-only"),
    (["--gpus", "-1", "--", "true"], "--gpus"),
    (["--gpus", "NaN", "--", "true"], "--gpus"),
    (["--gpus", "1e400", "--", "true"], "--gpus"),
    (["--gpus", "abc", "--", "true"], "--gpus"),
    (["--nodes", "0", "--", "true"], "--nodes"),
    (["--nodes", "2-3", "--", "true"], "a range of nodes begins at 1: write 1-3"),
    (["--nodes", "1-9999", "--", "true"], "is not a number of nodes up to 4096: write 2 or 1-3"),
    (["--nodes", "2", "--gpus", "3", "--", "true"], "3 GPUs cannot be divided equally among 2 nodes"),
    (["--nodes", "2", "--gpus", "2-4", "--", "true"], "one number of GPUs"),
    (["--nodes", "2", "--gpus", "1/2", "--", "true"], "cannot be divided"),
    (["--gpus", "4-1", "--", "true"], "--gpus"),
    (["--gpus", "999999999", "--", "true"], "limit of 4096"),
    (["--gpus", "9" * 10_000, "--", "true"], "--gpus"),
    ([], "command"),
    (["--"], "command"),
    (["--", ""], "command"),
    (["--", "x" * 10_000_000], "limit of 131071"),
    (["--", "true", *["x" * 100_000] * 11], "limit of 1048576"),
    (["--", "a\0b"], "argument 0: contains a NUL"),
    (["--", "a\udcff"], "argument 0: is not valid Unicode"),
    (["--name", "a\0b", "--", "true"], "--name: contains a NUL"),
    (["--name", "n" * 10_000_000, "--", "true"], "limit of 128"),
    (["--priority", "0", "--", "true"], "1<=x<=99"),
    (["--priority", "100", "--", "true"], "1<=x<=99"),
    (["--priority", "9" * 400, "--", "true"], "--priority"),
    (["--priority", "9" * 10_000, "--", "true"], "--priority"),
    (["--priority", "NaN", "--", "true"], "--priority"),
    (["--weight", "0", "--", "true"], "--weight: 0.0 is not between 0.001 and 1000"),
    (["--weight", "1001", "--", "true"], "--weight: 1001.0 is not between 0.001 and 1000"),
    (["--weight", "NaN", "--", "true"], "--weight: nan is not between 0.001 and 1000"),
    (["--weight", "a lot", "--", "true"], "--weight"),
    (["--group", "g" * 129, "--", "true"], "--group: 129 bytes are over the limit of 128"),
    (["--group", "a\0b", "--", "true"], "--group: contains a NUL"),
    (["--grace", "3", "--", "true"], "write 90s, 3m"),
    (["--grace", "25h", "--", "true"], "--grace"),
    (["--time", "0s", "--", "true"], "--time"),
    (["--time", "inf", "--", "true"], "--time"),
    (["--gpu-mem", "10", "--", "true"], "--gpu-mem"),
    (["--mem", "-1GiB", "--", "true"], "--mem"),
    (["--mem", "99999999999999TiB", "--", "true"], "--mem"),
    (["--cpus", "NaN", "--", "true"], "--cpus"),
    (["--cpus", "0", "--", "true"], "--cpus"),
    (["--retries", "-1", "--", "true"], "--retries"),
    (["--retries", "1001", "--", "true"], "--retries"),
    (["--suspend", "never", "--", "true"], "--suspend"),
    (["--suspend", "swap", "--gpus", "2", "--", "true"], "--suspend swap"),
    (["--suspend", "swap", "--gpus", "1/2-1", "--", "true"], "--suspend swap"),
    (["--suspend", "swap", "--launch", "ddp", "--", "true"], "--suspend swap"),
    (["--launch", "mpi", "--", "true"], "--launch"),
    (["--launch", "ddp", "--gpus", "1/2", "--", "true"], "--launch ddp"),
    (["--signal", "KILL", "--", "true"], "--signal"),
    (["--signal-target", "some", "--", "true"], "--signal-target"),
    (["--signal", "s" * 1_000_000, "--", "true"], "--signal"),
    (["--resume-args", "--from {chekpoint}", "--", "true"], "--resume-args: {chekpoint} is not known: there are"),
    (["--resume-args", "{}", "--", "true"], "--resume-args: {} is not known"),
    (["--resume-args", "--from 'a", "--", "true"], "--resume-args: no closing quotation"),
    (["--resume-args", "a\0b", "--", "true"], "--resume-args: contains a NUL"),
    (["--resume-args", "x" * 200_000, "--", "true"], "--resume-args: 200000 bytes are over the limit of 131071"),
    (["--env", "1A=x", "--", "true"], "--env"),
    (["--env", "=x", "--", "true"], "--env"),
    (["--env", "NOT_SET_ANYWHERE", "--", "true"], "NOT_SET_ANYWHERE"),
    (["--env", "A=" + "x" * 200_000, "--", "true"], "limit of 131071"),
    (["--name", "", "--", "true"], "--name: is empty"),
    (["--name", "  ", "--", "true"], "--name: is blank"),
    (["--name", "a\nb", "--", "true"], "--name: contains a line break"),
    (["--name", "a\x1bb", "--", "true"], "--name: contains a line break or another control character"),
    (["--workdir", "/a\0b", "--", "true"], "--workdir"),
    (["--workdir", "/" + "d" * 5000, "--", "true"], "--workdir"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD_INPUTS)
def test_bad_input_is_one_line_that_names_it_and_queues_nothing(ebb, master, arguments, named):
    result = ebb("submit", *arguments)
    assert result.code == 2
    assert named in result.complaint
    assert len(result.complaint) <= 600
    assert result.out == ""
    assert master.sent("Submit") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share_of(60), deadline=None)
@given(
    st.sampled_from(
        ["--gpus", "--gpu-mem", "--cpus", "--mem", "--grace", "--time", "--priority", "--weight", "--retries"]
    ),
    st.text(max_size=40) | st.integers().map(str) | st.floats().map(str),
)
def test_no_value_of_any_option_makes_a_traceback(ebb, master, option, value):
    result = ebb("submit", option, value, "--", "true")
    assert result.code in (0, 2)
    assert len(result.err.splitlines()) == (1 if result.code else 0)
    assert "internal error" not in result.err


def test_what_the_master_finds_impossible_is_exit_2(ebb, master):
    words = "--gpus: 9 is more than the 2 of the largest node"
    master.refusals["Submit"] = (grpc.StatusCode.INVALID_ARGUMENT, words)
    result = ebb("submit", "--gpus", "9", "--", "true")
    assert (result.code, result.complaint) == (2, words)


def test_a_directory_that_is_gone_is_one_line(master, home, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    with start_ebb("submit", "--", "true", cwd=gone, preexec_fn=gone.rmdir) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err == "ebb: submit: --workdir: the current directory does not exist any more\n"


def test_a_dry_run_queues_nothing(ebb, master):
    master.warnings = ["no node has registered yet"]
    result = ebb("submit", "--dry-run", "--wait", "--", "true")
    assert (result.code, result.out) == (0, "Nothing queued: the job would be accepted.\n")
    assert result.complaint == "warning: no node has registered yet"
    (request,) = master.sent("Submit")
    assert request.dry_run
    assert ebb("submit", "--dry-run", "--json", "--", "true").json["id"] is None


def test_a_submit_that_the_master_did_not_answer_is_repeated_under_the_same_id(ebb, master):
    master.dying = 1
    assert ebb("submit", "--", "true").out == "17\n"
    first, second = master.sent("Submit")
    assert 0 < len(first.operation_id) <= 64
    assert first.operation_id == second.operation_id


@pytest.mark.parametrize(
    ("state", "exit_code", "expected"),
    [
        ("COMPLETED", 0, 0),
        ("FAILED", 7, 7),
        ("FAILED", 137, 137),
        ("FAILED", -9, 137),
        ("FAILED", None, 125),
        ("FAILED", 0, 125),
        ("CANCELLED", 143, 143),
        ("CANCELLED", None, 125),
    ],
)
def test_wait_returns_the_exit_code_of_the_job(ebb, master, state, exit_code, expected):
    master.add(make_job(state="PENDING"))
    master.changes["17"] = [make_job(state="RUNNING"), make_job(state=state, exit_code=exit_code)]
    result = ebb("submit", "--wait", "--", "true")
    assert (result.code, result.out) == (expected, "17\n")


def test_wait_with_json_ends_with_the_finished_job(ebb, master):
    master.add(make_job(state="COMPLETED", exit_code=0))
    first, second = ebb("submit", "--wait", "--json", "--", "true").out.splitlines()
    assert '"id": "17"' in first
    assert '"state": "COMPLETED"' in second


def test_with_wait_a_failure_of_ours_is_125_and_a_mistake_stays_2(ebb, master):
    assert ebb("submit", "--wait", "--gpus", "0", "--", "true").code == 2
    master.refusals["Submit"] = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit of 5 jobs is reached")
    assert ebb("submit", "--wait", "--", "true").code == 125
    assert ebb("submit", "--", "true").code == 1


@pytest.mark.parametrize(("arguments", "code"), [(["--wait"], 125), ([], 1)])
def test_with_wait_a_fault_of_ours_is_125_as_any_failure(ebb, master, monkeypatch, arguments, code):
    def broken(*_, **__):
        raise ZeroDivisionError("two")

    monkeypatch.setattr("ebbtide_cli.verbs.submit.send", broken)
    result = ebb("submit", *arguments, "--", "true")
    assert (result.code, result.complaint.partition(" (")[0]) == (
        code,
        "internal error, please report it: ZeroDivisionError: two",
    )
    monkeypatch.setenv("EBB_DEBUG", "1")
    assert "Traceback" in ebb("submit", *arguments, "--", "true").err


def test_interrupting_the_wait_detaches_and_cancels_nothing(master, home):
    master.add(make_job(state="RUNNING"))
    with start_ebb("submit", "--wait", "--", "true", times=UNHURRIED) as process:
        assert process.stdout.readline() == "17\n"
        master.watched.wait(30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "ebb: detached; job 17 not changed ('ebb cancel' would end it)\n"
    assert master.sent("Cancel") == []


def test_a_submit_that_is_too_much_at_a_time_waits_and_is_repeated_under_the_same_id(ebb, master):
    master.busy_s = [0.02, 0.03]
    result = ebb("submit", "--", "true")
    assert (result.code, result.out) == (0, "17\n")
    assert result.complaint == "ada submits too many jobs at a time: try again in 0.0 s; waiting"
    assert len({request.operation_id for request in master.sent("Submit")}) == 1


def test_a_submit_does_not_wait_for_ever_until_it_is_taken(ebb, master):
    master.busy_s = [3600.0]
    result = ebb("submit", "--", "true")
    assert (result.code, result.complaint) == (1, "ada submits too many jobs at a time: try again in 3600.0 s")
