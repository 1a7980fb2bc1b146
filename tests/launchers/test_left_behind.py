"""Who is left when a launcher was killed, and how the end of one is read that had to be."""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from ebbtide_agent.processes.stop_propagation import LINGER_S
from ebbtide_master.convert import CHECKPOINTED_MESSAGES

from tests.launchers.generated import WITNESS
from tests.launchers.test_generated import journal, who
from tests.scripts.cases import SUSPENDED, YES, Case, python, read, suspend

SPAWNS_RANKS = Path(__file__).with_name("spawns_ranks.py")


async def test_a_training_whose_launcher_is_killed_is_asked_to_save(agent, tmp_path):
    line = f"{shlex.join([sys.executable, str(WITNESS), 'takes-part'])}; echo next"
    environment = {"PATH": os.environ["PATH"], "JOURNAL": str(tmp_path / "journal")}
    async with agent() as node:
        await node.launch(["sh", "-c", line], env=environment)
        await node.until(lambda: bool(who(journal(tmp_path), "up")))
        os.kill(node.status().pid, signal.SIGKILL)
        status = await node.end()
        assert status.exit.signal == signal.SIGKILL
        assert who(journal(tmp_path), "saved")
        assert status.checkpoint.step > 0


async def test_make_that_is_killed_when_its_training_has_saved_and_left_well_is_read_as_having_left(agent, tmp_path):
    file = Path(tmp_path, "Makefile")
    file.write_text(f"all:\n\t{shlex.join(python('traps_and_exits.py', '0'))}\n\techo next\n")
    case = Case("make", ["make", "-f", str(file)], YES)
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (SUSPENDED, True), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        assert "next" not in node.log()


DRIVERS = {
    "python above a training": "subprocess.run(sys.argv[1:])\n",
    "python above bash": "subprocess.run(['bash', '-c', '\"$@\"; echo next', 'bash', *sys.argv[1:]])\n",
    "python with idle threads": "import threading\nlock = threading.Lock()\nlock.acquire()\n"
    "threading.Thread(target=lock.acquire, daemon=True).start()\nsubprocess.run(sys.argv[1:])\n",
}


@pytest.mark.parametrize("code", DRIVERS.values(), ids=DRIVERS)
@pytest.mark.parametrize("exit_code", ["0", "85"])
async def test_a_driver_that_only_waits_begins_nothing_more_when_its_training_has_saved_and_left(
    agent, tmp_path, code, exit_code
):
    driver = tmp_path / "driver.py"
    driver.write_text(f"import subprocess, sys\n{code}print('next')\n")
    case = Case("driver", [sys.executable, "-S", str(driver), *python("traps_and_exits.py", exit_code)], YES)
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (SUSPENDED, True), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        assert "next" not in node.log()


async def test_a_driver_that_reads_what_its_training_prints_is_ended_as_soon_as_that_has_left(agent, tmp_path):
    """It is not stopped, for its training may have to write to it."""
    driver = tmp_path / "driver.py"
    code = "import subprocess, sys, time\ntraining = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
    driver.write_text(f"{code}for line in training.stdout: print(line.decode(), end='', flush=True)\ntime.sleep(600)\n")
    case = Case("driver", [sys.executable, "-S", str(driver), *python("traps_and_exits.py", "85")], YES)
    async with agent() as node:
        status = await suspend(node, case)
        assert read(status, case).ending is SUSPENDED
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        assert status.exit.ended_at - status.exit.stop_requested_at < LINGER_S


@pytest.mark.parametrize("way", ["spawn", "fork", "forkserver"])
async def test_ranks_that_python_itself_started_save_before_the_one_that_started_them_is_ended(agent, way):
    case = Case("ranks", ["python", str(SPAWNS_RANKS), way], YES, processes=2)
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (SUSPENDED, True), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        saved = {path.name for path in (node.checkpoints / "1").rglob("rank-*")}
        assert saved == {"rank-0", "rank-1"}


async def test_a_process_that_only_starts_when_the_request_comes_and_ignores_the_signal_then_keeps_nobody_waiting(
    agent, tmp_path
):
    """As the resource tracker of Python's multiprocessing does, on a machine that is busy."""
    driver, tracker = tmp_path / "driver.py", tmp_path / "tracker.py"
    tracker.write_text(
        "import signal, sys, time\n"
        "time.sleep(1.5)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})\n"
        "sys.stdin.read()\n"
    )
    driver.write_text(
        "import signal, subprocess, sys, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "tracker = subprocess.Popen([sys.executable, '-S', sys.argv[1]], stdin=subprocess.PIPE)\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})\n"
        "training = subprocess.Popen(sys.argv[2:])\n"
        "while True: time.sleep(0.01)\n"
    )
    command = [sys.executable, "-S", str(driver), str(tracker), *python("traps_and_exits.py", "85")]
    case = Case("driver", command, YES)
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (SUSPENDED, True), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]


async def test_a_driver_that_comes_to_wait_only_after_the_request_begins_nothing_more_either(agent, tmp_path):
    driver, training, asked = tmp_path / "driver.py", tmp_path / "training.py", tmp_path / "asked"
    training.write_text(
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n"
        f"    pathlib.Path({str(asked)!r}).touch()\n"
        "    time.sleep(1.5)\n"
        "    pathlib.Path(os.environ['EBB_CHECKPOINT_DIR'], 'state').write_text('whole')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    driver.write_text(
        "import os, subprocess, sys, time\n"
        "training = subprocess.Popen(sys.argv[2:])\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "training.wait()\n"
        "print('next')\n"
    )
    command = [sys.executable, "-S", str(driver), str(asked), sys.executable, "-S", str(training)]
    case = Case("driver", command, YES)
    async with agent() as node:
        status = await suspend(node, case)
        assert read(status, case).ending is SUSPENDED
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        assert "next" not in node.log()


@pytest.mark.parametrize("shell", [(), ("bash", "-c", '"$@"; echo next', "job")], ids=["alone", "below a shell"])
async def test_a_driver_that_calls_it_a_failure_to_be_ended_hides_nothing_of_a_training_that_has_saved(
    agent, tmp_path, shell
):
    """As GNU parallel and Snakemake do: they catch the signal, and end with a code of their own."""
    driver = tmp_path / "parallel"
    code = "import signal, subprocess, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(255))\n"
    driver.write_text(f"#!{sys.executable} -S\n{code}subprocess.call(sys.argv[1:])\nprint('next')\n")
    driver.chmod(0o700)
    case = Case("parallel", [*shell, str(driver), *python("traps_and_exits.py", "85")], YES)
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (SUSPENDED, True), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        assert "next" not in node.log()
