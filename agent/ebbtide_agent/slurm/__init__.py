"""Provides scripts for Slurm with its variables, and with small stand-ins for `srun` and `scontrol`.

The job runs `srun.py`, `scontrol.py` and the files in `bin`, in an interpreter of the agent's. They import the standard
library only, and as little of it as they can.
"""

from pathlib import Path

BIN = Path(__file__).with_name("bin")
"""The folder that comes first in the job's PATH."""
FOLLOWER = Path(__file__).with_name("srun.py")
"""The program that a job's later nodes run in place of the script, for the steps of the first node's `srun`."""
END = "end"
"""The file among the steps of an attempt on several nodes that says that the script has ended."""
