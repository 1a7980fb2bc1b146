"""Who is left when a launcher was killed, and how the end of one is read that had to be."""

import os
import shlex
import signal
import sys
from pathlib import Path

from ebbtide_master.convert import CHECKPOINTED_MESSAGES

from tests.launchers.generated import WITNESS
from tests.launchers.test_generated import journal, who
from tests.scripts.cases import SUSPENDED, YES, Case, python, read, suspend


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


async def test_a_driver_that_calls_it_a_failure_to_be_ended_hides_nothing_of_a_training_that_has_saved(agent, tmp_path):
    """As GNU parallel and Snakemake do: they catch the signal, and end with a code of their own."""
    driver = tmp_path / "parallel"
    code = "import signal, subprocess, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(255))\n"
    driver.write_text(f"#!{sys.executable} -S\n{code}subprocess.call(sys.argv[1:])\nprint('next')\n")
    driver.chmod(0o700)
    case = Case("parallel", [str(driver), *python("traps_and_exits.py", "85")], YES)
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (SUSPENDED, True), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[YES]
        assert "next" not in node.log()
