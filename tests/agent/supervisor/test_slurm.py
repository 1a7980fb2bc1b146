"""What scripts for Slurm find here: variables, `srun`, `scontrol`."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from ebbtide_agent import slurm
from ebbtide_agent.slurm import srun as srun_program
from ebbtide_agent.slurm.variables import job_number, slurm_environment
from ebbtide_agent.supervisor.sealing import settling
from ebbtide_agent.supervisor.sealing.evidence import StopConduct
from ebbtide_agent.supervisor.sealing.settling import LeftFiles

from tests.agent.contract.test_environment import PLAIN
from tests.agent.supervisor.node import EXITED


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, ""])


async def run(node, *lines: str, **options):
    """Run a script with `#SBATCH` lines; what it printed, and its exit code."""
    options = {"slurm": True, "script": script(*lines)} | options
    status = await node.run(["job.sh"], **options)
    assert status.phase == EXITED, status
    return node.log(options.get("job_id", "1")), status.exit.exit_code


def test_an_array_task_has_a_number_of_its_own_and_the_arrays():
    variables = slurm_environment(replace(PLAIN, job_id="17.3", attempt=1), 0.0, 0, {"PATH": "/bin"}, "/py")
    assert (variables["SLURM_JOB_ID"], job_number("17")) == ("17000003", "17")
    assert (variables["SLURM_ARRAY_JOB_ID"], variables["SLURM_ARRAY_TASK_ID"]) == ("17", "3")
    assert "SLURM_RESTART_COUNT" not in variables


def test_a_plain_job_knows_its_nodes_its_gpus_and_how_often_it_was_restarted():
    variables = slurm_environment(replace(PLAIN, num_nodes=2, node_names=("a", "b"), node_rank=1), 0.0, 0, {}, "/py")
    assert (variables["SLURM_JOB_ID"], variables["SLURM_RESTART_COUNT"]) == ("17", "1")
    assert (variables["SLURM_JOB_NODELIST"], variables["SLURM_NODEID"]) == ("a,b", "1")
    assert "SLURM_ARRAY_JOB_ID" not in variables


@pytest.mark.parametrize(
    ("said", "tasks", "per_node"),
    [
        ({}, "4", "1(x4)"),
        ({"SLURM_NTASKS_PER_NODE": "2"}, "8", "2(x4)"),
        ({"SLURM_NTASKS": "6"}, "6", "2(x2),1(x2)"),
        ({"SLURM_NTASKS": "5", "SLURM_NTASKS_PER_NODE": "2"}, "5", "2,1(x3)"),
        ({"SLURM_NTASKS": "2"}, "2", "1(x2)"),
        ({"SLURM_NTASKS": "0", "SLURM_NTASKS_PER_NODE": "many"}, "4", "1(x4)"),
        pytest.param({"SLURM_NTASKS": "9" * 5000}, "4", "1(x4)", id="no number of tasks"),
    ],
)
def test_the_number_of_tasks_follows_from_the_nodes_that_the_attempt_has(said, tasks, per_node):
    variables = slurm_environment(replace(PLAIN, num_nodes=4, node_names=tuple("abcd")), 0.0, 0, said, "/py")
    assert (variables["SLURM_NTASKS"], variables["SLURM_NPROCS"]) == (tasks, tasks)
    assert variables["SLURM_TASKS_PER_NODE"] == per_node


def srun(*arguments: str, program: str = "srun", **variables: str) -> subprocess.Popen[str]:
    """Start `srun` without a job around it."""
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_NODELIST": "node", "SLURM_NODEID": "0"} | variables
    command = [sys.executable, "-I", "-S", str(slurm.FOLLOWER.with_name(f"{program}.py")), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_srun_runs_a_command_as_the_tasks_of_the_job():
    show = "echo $SLURM_PROCID of $SLURM_NTASKS; exit $SLURM_PROCID"
    with srun("--cpu-bind=none", "-l", "sh", "-c", show, SLURM_NTASKS="3") as process:
        assert sorted(process.stdout) == ["0 of 3\n", "1 of 3\n", "2 of 3\n"]
    assert process.returncode == 2


def test_tasks_with_gpus_of_their_own_see_no_others():
    gpus = {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
    with srun("-n2", "--gpus-per-task=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", **gpus) as process:
        assert sorted(process.stdout) == ["GPU-0\n", "GPU-1\n"]


def test_steps_side_by_side_share_out_the_gpus_and_wait_for_them(disk):
    job = {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1", "EBB_SOCKET": str(disk / "job.sock")}
    show = "echo $CUDA_VISIBLE_DEVICES; read end < "
    for name in "abc":
        os.mkfifo(disk / name)
    with (
        srun("-n1", "--exclusive", "--gres=gpu:1", "sh", "-c", show + str(disk / "a"), **job) as first,
        srun("-n1", "--exclusive", "--gpus=1", "sh", "-c", show + str(disk / "b"), **job) as second,
    ):
        had = first.stdout.readline(), second.stdout.readline()
        with srun("-n1", "--gpus=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", **job) as third:
            (disk / "a").write_text("\n")
            assert third.stdout.readline() == had[0]
        (disk / "b").write_text("\n")
    assert sorted(had) == ["GPU-0\n", "GPU-1\n"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--mpi=pmix ./a", "--mpi=pmix: MPI is not started here"),
        ("--multi-prog x", "--multi-prog is not known here"),
        ("-w elsewhere ./a", "--nodelist: 'elsewhere' is no node of this job: there are node"),
        ("-N 2 ./a", "--nodes: 2 are more than the 1 of this job"),
        ("-n two ./a", "'two' is not a number"),
        ("-n", "-n needs a value"),
        ("-n 2", "there is no command"),
        ("--gpus=3 ./a", "3 GPUs are more than the 0 that the job has here"),
        ("./not-there", "./not-there: No such file or directory"),
    ],
)
def test_srun_says_what_it_cannot_do(arguments, reason):
    with srun(*arguments.split()) as process:
        assert process.stdout.read().startswith(f"srun (of Ebbtide): {reason}")
    assert process.returncode in (1, 127)


def test_srun_writes_into_files_by_task(disk):
    pattern = f"{disk}/out-%j-%t.txt"
    with srun("-n2", "-o", pattern, "sh", "-c", "echo $SLURM_LOCALID; echo e >&2", SLURM_JOB_ID="1") as process:
        assert process.wait() == 0
    assert [(disk / f"out-1-{task}.txt").read_text() for task in (0, 1)] == ["0\ne\n", "1\ne\n"]


async def test_a_requeue_ends_the_script_as_the_exit_that_asks_to_be_run_again(agent):
    async with agent() as node:
        log, code = await run(node, "(scontrol requeue $SLURM_JOB_ID); sleep 60 & wait; echo never")
    assert (log, code) == ("", 75)


async def test_a_requeue_by_a_task_of_srun_ends_the_script_too(agent):
    async with agent() as node:
        log, code = await run(node, "srun sh -c 'scontrol requeue $SLURM_JOB_ID; sleep 60'; echo never")
    assert (log, code) == ("", 75)


async def test_a_script_that_requeues_itself_when_it_is_asked_to_stop_is_suspended_by_that(agent):
    lines = ["trap 'echo saving; scontrol requeue $SLURM_JOB_ID' USR1", "sleep 60 &", "echo ready", "wait"]
    async with agent() as node:
        await node.launch(["job.sh"], slurm=True, script=script(*lines), signal="SIGUSR1")
        await node.running(line="ready")
        status = await node.stop()
    assert (status.exit.exit_code, status.exit.stop_requested, status.exit.killed) == (75, True, False)
    assert node.log() == "ready\nsaving\n"


def test_scontrol_knows_the_nodes_of_the_job_and_little_else():
    with srun("show", "hostnames", "node", program="scontrol") as process:
        assert process.stdout.read() == f"{os.uname().nodename}\n"
    with srun("show", "hostnames", program="scontrol", SLURM_JOB_NODELIST="a,b", MASTER_ADDR="10.0.0.1") as process:
        assert process.stdout.read() == "10.0.0.1\nb\n"
    with srun("show", "job", "1", program="scontrol") as process:
        assert "only 'requeue' of this job and 'show hostnames' are known" in process.stdout.read()
    assert process.returncode == 1


def test_the_first_node_has_the_others_run_their_tasks_and_they_leave_with_the_script(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk), "SLURM_NTASKS": "4"}
    show = "echo $SLURMD_NODENAME $SLURM_NODEID $SLURM_LOCALID $SLURM_PROCID $SET; exit $SLURM_PROCID"
    with srun("--follow", **nodes, SLURM_NODEID="1", SLURMD_NODENAME="b") as later:
        with srun("--export=ALL,SET=1", "sh", "-c", show, **nodes, SLURMD_NODENAME="a") as first:
            assert sorted(first.stdout) == ["a 0 0 0 1\n", "a 0 1 1 1\n"]
        assert first.returncode == 3
        with srun("-N1", "-n1", "-w", "b", "sh", "-c", show, **nodes) as chosen:
            assert (chosen.stdout.read(), chosen.wait()) == ("", 0)
        (disk / slurm.END).touch()
        assert sorted(later.stdout) == ["b 1 0 0\n", "b 1 0 2 1\n", "b 1 1 3 1\n"]
    assert later.returncode == 0


def test_a_later_node_outlives_a_file_system_that_fails_for_a_moment(disk, monkeypatch):
    failures = {"listdir": errno.ESTALE, "open": errno.ENOSPC}

    class Failing:
        """The system, of which each of these calls fails once; then the script ends."""

        def __getattr__(self, name):
            if name not in failures:
                return getattr(os, name)
            error = OSError(failures.pop(name), name)
            if not failures:
                (disk / slurm.END).touch()

            def fail(*_):
                raise error

            return fail

    monkeypatch.setenv("EBB_SLURM_STEPS", str(disk))
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setattr(srun_program, "os", Failing())
    assert srun_program.follow(deaf=False) == 0


def test_the_steps_with_the_scripts_environment_go_when_it_has_ended_even_if_that_is_lost(disk):
    for number, lost in enumerate((False, True), start=1):
        attempt = replace(PLAIN, attempt=number, num_nodes=2, node_rank=0, job_checkpoint_dir=str(disk))
        steps, left = disk / f"steps-{number}", LeftFiles(number)
        attempt.checkpoint_dir.mkdir()
        steps.mkdir()
        for name in ("0.json", ".17", "0.1.exit"):
            (steps / name).touch()
        if lost:
            settling.settle_lost(str(disk), attempt.job_id, 0, asdict(left))
        else:
            settling.settle(attempt, left, None, StopConduct(handled=False), ends_steps=True)
        assert {path.name for path in steps.iterdir()} == {"0.1.exit", slurm.END}


def test_a_later_node_passes_over_a_step_that_is_gone_because_the_script_has_ended(disk, monkeypatch):
    (disk / "0.json").symlink_to("gone")
    (disk / slurm.END).touch()
    monkeypatch.setenv("EBB_SLURM_STEPS", str(disk))
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert srun_program.follow(deaf=False) == 0


def test_a_signal_to_srun_reaches_its_tasks_on_all_nodes(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk)}
    task = f"trap 'echo asked; exit 5' USR1; touch {disk}/ready-$SLURM_PROCID; while :; do sleep 0.02; done"
    with srun("--follow", **nodes, SLURM_NODEID="1") as later:
        with srun("-n2", "sh", "-c", task, **nodes) as first:
            while not all((disk / f"ready-{task}").exists() for task in (0, 1)):
                assert first.poll() is None
            first.send_signal(signal.SIGUSR1)
            assert (first.stdout.read(), first.wait()) == ("asked\n", 5)
        (disk / slurm.END).touch()
        assert later.stdout.read() == "asked\n"


def test_a_signal_to_srun_reaches_its_tasks_on_all_nodes_each_time(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk)}
    counts = f"n=$((n+1)); touch {disk}/asked-$n-$SLURM_PROCID; [ $n = 3 ] && exit 5"
    task = f"n=0; trap '{counts}' USR1; touch {disk}/asked-0-$SLURM_PROCID; while :; do sleep 0.02; done"
    with srun("--follow", **nodes, SLURM_NODEID="1") as later:
        with srun("-n2", "sh", "-c", task, **nodes) as first:
            for turn in range(3):
                while not all((disk / f"asked-{turn}-{rank}").exists() for rank in (0, 1)):
                    assert first.poll() is None
                first.send_signal(signal.SIGUSR1)
            assert first.wait() == 5
        (disk / slurm.END).touch()
        assert later.wait() == 0
    # A later node with an older agent splits a name that ends like this at its points, and takes three parts.
    assert {len(path.name.split(".")) for path in disk.glob("*.signal")} == {3}


def test_signals_that_a_later_node_sees_at_one_look_reach_its_tasks_each_time(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk)}
    task = f"n=0; trap 'n=$((n+1)); [ $n = 2 ] && exit 5' USR1; touch {disk}/ready; while :; do sleep 0.02; done"
    with srun("--follow", **nodes, SLURM_NODEID="1") as later:
        with srun("-w", "b", "-N1", "-n1", "sh", "-c", task, **nodes) as first:
            while not (disk / "ready").exists():
                assert first.poll() is None
            later.send_signal(signal.SIGSTOP)
            for again in ("", ".2"):
                (disk / f"0.{int(signal.SIGUSR1)}.signal{again}").touch()
            later.send_signal(signal.SIGCONT)
            assert first.wait() == 5
        (disk / slurm.END).touch()
        assert later.wait() == 0


def test_a_signal_to_srun_that_waits_for_gpus_reaches_its_tasks(disk):
    job = {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1,GPU-2", "EBB_SOCKET": str(disk / "job.sock")}
    with open(disk / "gpu-0.lock", "w") as first, open(disk / "gpu-1.lock", "w") as second:
        for taken in (first, second):
            fcntl.flock(taken, fcntl.LOCK_EX)
        process = srun("-n1", "--gpus=2", "sleep", "5", **job)
        while not (disk / "gpu-2.lock").exists():  # it has looked for them
            assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
    with process:
        assert process.wait() == 128 + signal.SIGUSR1


def test_a_signal_to_srun_that_waits_for_gpus_reaches_the_tasks_that_run_elsewhere_at_once(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    task = f"trap 'exit 5' USR1; touch {disk}/ready-$SLURM_PROCID; while :; do sleep 0.02; done"
    for folder in ("here", "there"):
        (disk / folder).mkdir()
    with (
        srun("--follow", **nodes, SLURM_NODEID="1", EBB_SOCKET=str(disk / "there/job.sock")) as later,
        open(disk / "here/gpu-0.lock", "w") as one,
        open(disk / "here/gpu-1.lock", "w") as other,
    ):
        for taken in (one, other):
            fcntl.flock(taken, fcntl.LOCK_EX)
        job = nodes | {"EBB_SOCKET": str(disk / "here/job.sock")}
        with srun("-n2", "--gpus-per-node=2", "sh", "-c", task, **job) as first:
            while not ((disk / "ready-1").exists() and (disk / "here/gpu-2.lock").exists()):  # it has looked for GPUs
                assert first.poll() is None
            first.send_signal(signal.SIGUSR1)
            while not (disk / "0.1.exit").exists():
                assert first.poll() is None
            assert ((disk / "0.1.exit").read_text(), (disk / "ready-0").exists()) == ("5", False)
            for taken in (one, other):
                taken.close()
            assert first.wait() in (5, 128 + signal.SIGUSR1)  # the shell on this node may not have come to its trap
        (disk / slurm.END).touch()
        assert later.wait() == 0


def test_a_signal_that_a_later_node_sees_before_its_step_reaches_the_step(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk)}
    with srun("--follow", **nodes, SLURM_NODEID="1") as later:
        (disk / f"0.{int(signal.SIGUSR1)}.signal").touch()
        for _ in range(5):  # each look makes a file, and removes it
            before = disk.stat().st_mtime_ns
            while disk.stat().st_mtime_ns == before:
                assert later.poll() is None
        with srun("-N1", "-n1", "-w", "b", "sleep", "60", **nodes) as first:
            assert first.wait() == 128 + signal.SIGUSR1
        (disk / slurm.END).touch()
        assert later.wait() == 0


async def test_the_stop_signal_goes_past_srun_to_the_tasks_or_to_all_if_none_handles_it(agent):
    task = "srun sh -c \"trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.02; done\"; echo next"
    async with agent() as node:
        await node.launch(["job.sh"], slurm=True, script=script(task))
        await node.running(line="ready")
        await node.stop()
        assert node.log() == "ready\nasked\n"
        await node.launch(
            ["job.sh"], job_id="2", slurm=True, script=script("srun sh -c 'echo ready; sleep 60'; echo next")
        )
        await node.running("2", line="ready")
        status = await node.stop(job_id="2")
        assert (node.log("2"), status.exit.caught, status.exit.killed) == ("ready\n", False, False)


def test_a_later_node_does_not_hear_the_signal_that_is_for_the_script_alone(disk):
    nodes = {"SLURM_JOB_NODELIST": "a,b", "EBB_SLURM_STEPS": str(disk)}
    task = f"touch {disk}/ready; until [ -e {disk}/go ]; do sleep 0.02; done; echo still here"
    with srun("--follow", "--deaf", **nodes, SLURM_NODEID="1") as later:
        with srun("-w", "b", "sh", "-c", task, **nodes) as first:
            while not (disk / "ready").exists():
                assert first.poll() is None
            later.send_signal(signal.SIGUSR1)
            (disk / "go").touch()
            code = first.wait()
        (disk / slurm.END).touch()
        assert later.stdout.read() == "still here\n"
    assert (code, later.returncode) == (0, 0)
