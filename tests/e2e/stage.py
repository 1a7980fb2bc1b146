"""What the examples of the help need around them: a directory with the files that they name, programs, and jobs."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.terminal import on_terminal
from tests.ports import free_port

TRAIN = """
import itertools, sys, time, ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
for step in itertools.count(state.step if state else 0):
    time.sleep(0.02)
    print(f"step {step + 1} loss {1 / (step + 1)}", flush=True)
    job.report(step=step + 1, loss=1 / (step + 1))
    if job.should_suspend():
        job.suspend(lambda folder: (folder / "n").write_text(str(step + 1)))
    if "--epochs" in sys.argv:
        break
"""
SERVE = f"""#!/bin/sh
# Stands in for programs that serve pages on the port that they are given.
while [ $# -gt 0 ]; do
    case $1 in
        --port) port=$2;;
        *.port=*) port=${{1#*=}};;
    esac
    shift
done
exec {sys.executable} -m http.server --bind 127.0.0.1 "$port"
"""
FILES = {
    "train.py": TRAIN,
    "train.sh": "#EBB --cpu-only\nexec python train.py\n",
    "probe.py": "print('fine')\n",
    "evaluate.py": "print('fine')\n",
    "evaluate.sh": "#!/bin/sh\necho evaluated\n",
    "slurm_job.sh": "trap 'exit 0' USR1\nwhile :; do sleep 0.1; done\n",
    "sweep.py": "print('fine')\n",
    "no_checkpoints.py": "import time\ntime.sleep(600)\n",
    "Makefile": "test:\n\t@echo tested\n",
    "jobs.csv": "id,submit_s,runtime_s,gpus_max\n1,0,600,1\n2,60,1200,2\n3,120,300,8\n",
    "users.csv": "name,role\nmia,user\n",
    "supply.toml": '[supply.hpc]\nmax_nodes = 2\ngpus_per_node = 4\ntime = "8h"\nassumed = { queue = "10m" }\n',
    "runs.txt": "".join(f"{600 + 37 * n % 900}\n" for n in range(40)),
    "model.pt": "weights\n",
    "metrics.csv": "step,loss\n1,0.5\n",
    "runs/events": "1\n",
    "lightning_logs/events": "1\n",
    "results/README": "of earlier runs\n",
    "data/imagenet/README": "images\n",
    "etc/ebbtide/foreign.sh": "#!/bin/sh\n",
    "nfs/ebbtide/README": "shared\n",
    "bin/nvidia-smi": "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES\n",
    "bin/jupyter": SERVE,
    "bin/tensorboard": SERVE,
    "bin/ipython": '#!/bin/sh\nexec sh "$@"\n',
}
"""By where they lie below the directory of the stage."""
STAND_INS = {"jq": "#!/bin/sh\ncat\n", "make": "#!/bin/sh\necho tested\n"}
"""Of programs that this machine may have, where it has not."""
PORTS = ("8000", "9000", "6006")
SHELL = "source() { cat > /dev/null; }  # of fish\n"


@dataclass
class Stage:
    """A cluster, a directory to be in, and jobs that are in the states in which examples need theirs."""

    cluster: Cluster
    folder: Path
    jobs: dict[str, list[str]] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=lambda: {named: str(free_port()) for named in PORTS})
    """What stands for the ports that examples name."""

    def furnish(self) -> None:
        """Write the files, and have the programs among them found first."""
        missing = {f"bin/{name}": text for name, text in STAND_INS.items() if not shutil.which(name)}
        for name, text in {**FILES, **missing}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        (self.folder / ".venv/bin").mkdir(parents=True)
        (self.folder / ".venv/bin/python").symlink_to(sys.executable)
        environment = self.cluster.environment
        environment |= {"HOME": str(self.folder), "WANDB_API_KEY": "secret", "SHELL": "/bin/sh"}
        environment["PATH"] = f"{self.folder / 'bin'}:{environment['PATH']}"

    def adapted(self, line: str, names: Mapping[str, str]) -> str:
        """The line with what is here in place of what it names; ``names`` are whole words."""
        for folder in ("/nfs/", "/etc/", "/data/"):
            line = line.replace(f" {folder}", f" {self.folder}{folder}")
        line = re.sub(r"\beth1\b", "lo", line)
        words = "|".join(map(re.escape, names))  # all at once: what stands for one may be what another is called
        return re.sub(rf"(?<![\w.-])({words})(?![\w.])", lambda found: names[found[0]], line) if words else line

    def master(self) -> str:
        """Where the master listens."""
        return f"unix:{self.cluster.home}"

    def masters(self) -> dict[str, str]:
        """What stands for it where examples name one."""
        ports = [f"{host}.lab.example:{port}" for host in ("login", "standby") for port in (7077, 7078)]
        return dict.fromkeys(("unix:/home/ada/lab", *ports), self.master())

    def perform(self, line: str, *, code: int = 0, seconds: float = 60.0) -> str:
        """Run a line that ends by itself; what it printed."""
        done = subprocess.run(
            ["bash", "-c", SHELL + line], env=self.cluster.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == code, (line, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def interrupt(self, line: str, shown: Callable[[str], bool], number: signal.Signals, *, code: int = 0) -> str:
        """Start a line, wait until what it printed is as it should be, end it by a signal; what it printed."""
        printed = self.folder / "printed"
        with printed.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", SHELL + line], env=self.cluster.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip
        try:
            wait_for(f"{line} works", lambda: process.poll() is not None or shown(printed.read_text()), 30)
            assert process.poll() is None, (line, process.returncode, printed.read_text())
            os.killpg(process.pid, number)
            assert process.wait(30) == code, (line, process.returncode, printed.read_text())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return printed.read_text()

    def type(self, line: str, shown: str, keys: str, *, code: int = 0) -> None:
        """Run a line on a terminal, and type ``keys`` once it shows something."""
        with on_terminal(self.cluster, line, program=("bash", "-c"), folder=self.folder) as terminal:
            terminal.until(shown)
            terminal.type(keys)
            assert terminal.end() == code, (line, terminal.shown)


def furnished(cluster: Cluster, folder: Path) -> Stage:
    """A stage with all that examples name."""
    stage = Stage(cluster, folder)
    stage.furnish()
    return stage
