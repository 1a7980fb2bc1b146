"""What a script for Slurm finds when it runs here: its variables, and small stand-ins for `srun` and `scontrol`.

`srun.py`, `scontrol.py` and what is in `bin` are run by the job, in an interpreter of the agent's: they import the
standard library only, and as little of it as they can.
"""

from pathlib import Path

BIN = Path(__file__).with_name("bin")
"""Comes first in the job's PATH."""
FOLLOWER = Path(__file__).with_name("srun.py")
"""What runs on a job's later nodes, in the script's place: it does what the first node's `srun` asks for."""
END = "end"
"""Among the steps of an attempt on several nodes: the script is over."""
