"""A Slurm of Debian's packages with two nodes of four GPUs each, on this machine, from which nothing is left."""

import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from tests.ports import free_ports

PROGRAMS: Final = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES: Final = tuple(f"sn{number}p{os.getpid()}" for number in (1, 2))
"""Slurm names the cgroups of jobs by node and number, so those of another process on this machine need other names."""
FIRST, SECOND = NODES
GPUS: Final = 4
GRACE_S: Final = 20
"""What Slurm leaves to whom it preempts, in seconds."""
_MAJOR: Final = 240  # of the GPUs' devices; which driver that is does not matter, as nobody opens them
_START_S: Final = 30.0
OVER: Final = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")
"""States of jobs that have ended, and whose processes are gone as far as Slurm knows."""


class Slurm:
    """The daemons, and what a user would do with them."""

    def __init__(self, folder: Path, tracking: str = "cgroup", constrains: bool = False) -> None:
        """With ``constrains``, a job can open no GPU but its own (ConstrainDevices)."""
        self.folder = folder
        self.tracking = tracking
        self.constrains = constrains
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands mean this Slurm."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start all daemons, and wait until the nodes are idle."""
        self._write()
        self._munged()
        self.start_controller()
        for node in NODES:
            self._daemon("slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", node)
        deadline = time.monotonic() + _START_S
        while self.command("sinfo", "-h", "-o", "%t", "-N").split() != ["idle"] * 2 * len(NODES):
            assert time.monotonic() < deadline, self.command("sinfo", "-N", "-l") + self.logs()
            time.sleep(0.1)

    def start_controller(self) -> None:
        """Start the controller, anew where it was killed."""
        self.controller = self._daemon("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        deadline = time.monotonic() + _START_S
        while self.try_command("scontrol", "ping").returncode:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands, which has to succeed."""
        done = self.try_command(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout

    def try_command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        return subprocess.run(words, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=30)

    def batch(self, script: str, *options: str) -> str:
        """Submit a script; return the job's id."""
        path = self.folder / f"{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.command("sbatch", "--parsable", *options, str(path)).strip()

    def state(self, job: str) -> str:
        """What Slurm says of a job: PENDING, RUNNING, COMPLETING, …; empty once it forgot it."""
        return self.try_command("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()

    def is_over(self, job: str) -> bool:
        """Whether a job has ended, and its processes are gone as far as Slurm knows."""
        return self.state(job) in ("", *OVER)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """End the jobs and the daemons, and whatever processes of jobs are left."""
        self.try_command("scancel", "--full", "--user", "root")
        deadline = time.monotonic() + _START_S
        while self.try_command("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.1)
        for daemon in reversed(self._daemons):
            for child in psutil.Process(daemon.pid).children(recursive=True) if daemon.poll() is None else ():
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            daemon.kill()
            daemon.wait()
        for step in psutil.process_iter(["name", "environ"]):  # which leave their parent
            named = (step.info["environ"] or {}).get("SLURM_CONF", "")
            if step.info["name"] == "slurmstepd" and named == self.env["SLURM_CONF"]:
                with suppress(psutil.NoSuchProcess):
                    step.kill()
        _remove_cgroups()

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}{len(self._daemons)}.out").open("ab") as output:
            daemon = subprocess.Popen(command, stdout=output, stderr=output, env=self.env, cwd=self.folder)
        self._daemons.append(daemon)
        return daemon

    def _munged(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        names = {"key-file": "key", "socket": "s", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in names.items()]
        self._daemon("munged", "--force", "--foreground", *options)
        deadline = time.monotonic() + _START_S
        while not (folder / "s").exists():
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)

    def _write(self) -> None:
        devices = self.folder / "dev"
        devices.mkdir()
        lines = []
        for number, node in enumerate(NODES):
            for gpu in range(GPUS):
                device = os.makedev(_MAJOR, number * GPUS + gpu)
                os.mknod(devices / f"{node}-gpu{gpu}", 0o666 | stat.S_IFCHR, device)
            lines.append(f"NodeName={node} Name=gpu Type=a100 File={devices}/{node}-gpu[0-{GPUS - 1}]")
        (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF.format(constrains="yes" if self.constrains else "no"))
        (self.folder / "state").mkdir()
        ports = free_ports(1 + len(NODES))
        text = _SLURM_CONF.format(
            host=socket.gethostname(), T=self.folder, tracking=self.tracking, grace=GRACE_S, gpus=GPUS, port=ports[0],
            plugin="task/cgroup" if self.tracking == "cgroup" else "task/none",
        )  # fmt: skip
        for node, port in zip(NODES, ports[1:], strict=True):
            facts = f"NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000"
            text += f"NodeName={node} {facts} Gres=gpu:a100:{GPUS}\n"
        (self.folder / "slurm.conf").write_text(text)


_CGROUP_CONF = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=yes
ConstrainDevices={constrains}
"""
_SLURM_CONF = """
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={T}/munge/s
CredType=cred/munge
ProctrackType=proctrack/{tracking}
TaskPlugin={plugin}
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={T}/state
SlurmdSpoolDir={T}/spool.%n
SlurmctldPidFile={T}/ctld.pid
SlurmdPidFile={T}/slurmd.%n.pid
SlurmctldLogFile={T}/ctld.log
SlurmdLogFile={T}/slurmd.%n.log
GresTypes=gpu
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=5,sched_interval=5
PartitionName=low Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=high Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


def _remove_cgroups() -> None:
    for top in (path for node in NODES for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}")):
        for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            top.rmdir()


def available() -> bool:
    """Whether this machine can run it."""
    v1 = Path("/sys/fs/cgroup/freezer").is_dir()
    return os.geteuid() == 0 and v1 and all(shutil.which(program) for program in PROGRAMS)


@contextmanager
def a_slurm(folder: Path, tracking: str = "cgroup", constrains: bool = False) -> Iterator[Slurm]:
    """Slurm, until the end of the block."""
    slurm = Slurm(folder, tracking, constrains)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
