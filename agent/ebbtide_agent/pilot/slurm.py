"""Reads what Slurm has given the step that this process is the task of, and asks Slurm when that ends."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ebbtide_agent.gpu.backend import Gpu

ASK_S: Final = 3.0
"""Seconds within which Slurm's controller has to answer."""
UNIX_TIMES: Final = {"SLURM_TIME_FORMAT": "%s"}
"""Makes Slurm's commands print Unix seconds, whatever format their user likes: a local time may come twice."""
_MIB: Final = 1 << 20
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """What Slurm has given a step on one machine.

    ``gpus`` is how many GPUs or MIG slices. ``minors`` are the minor numbers of their devices, and ``slices`` the UUIDs
    of the slices; each is empty where Slurm does not say so. ``cpus`` and ``mem_bytes`` are None where it does not say;
    ``until`` is when the job ends, in Unix seconds.
    """

    job: str
    host: str
    user: str
    gpus: int
    minors: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    cpus: float | None = None
    mem_bytes: int | None = None
    until: float | None = None

    @property
    def node_name(self) -> str:
        """A name for the node that no other job of Slurm has."""
        return _NAME.sub("-", f"{self.host}-{self.job}")[-63:].lstrip("._-")

    def choose(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that the step may use. Raises ValueError if that is not clear.

        Whether Slurm hides the other GPUs makes no difference: the driver counts only the GPUs that it shows, but a
        device's minor number stays. That there are as many as Slurm gave proves something only without such numbers,
        as one of ours may be lost, and one of another job in sight.
        """
        if not self.gpus:
            return ()
        if self.slices:
            chosen = [gpu for gpu in gpus if gpu.uuid in self.slices]
            found, named = len(chosen), ", ".join(self.slices)
        else:
            known = self.minors and all(gpu.minor is not None for gpu in gpus)
            chosen = [gpu for gpu in gpus if not known or str(gpu.minor) in self.minors]
            found, named = len({gpu.parent or gpu.uuid for gpu in chosen}), ", ".join(self.minors)
        if found != self.gpus:
            which = f"the ones that it names, {named}, are" if named else "which ones is"
            raise ValueError(
                f"Slurm job {self.job} has {self.gpus} of the {len(gpus)} GPUs here, and {which} not known to the"
                " driver: name them with --only-gpus"
            )
        return tuple(gpu.uuid for gpu in chosen)


def step(env: Mapping[str, str]) -> SlurmStep | None:
    """Return what Slurm has given this process; None if it runs in no job of Slurm.

    Raises ValueError if this process is a batch script itself: to such a process Slurm sends no signal before it kills
    it, unless its user asks for one.
    """
    job = env.get("SLURM_JOB_ID", "")
    if not job:
        return None
    if "SLURM_STEP_ID" not in env:
        raise ValueError(f"Slurm kills a batch script without a warning: write 'srun ebb agent pilot' in job {job}")
    minors = tuple(_numbers(env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS", "")))
    given = env.get("SLURM_GPUS_ON_NODE", "")
    gpus = int(given) if given.isdecimal() else len(minors)
    cpus = _positive(env.get("SLURM_CPUS_ON_NODE"))
    return SlurmStep(
        job,
        env.get("SLURMD_NODENAME") or os.uname().nodename,
        env.get("SLURM_JOB_USER", ""),
        gpus,
        minors,
        tuple(name for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.startswith("MIG-")),
        cpus,
        _mem_bytes(env, cpus, gpus),
        _positive(env.get("SLURM_JOB_END_TIME")),
    )


def _numbers(text: str) -> list[str]:
    """Return the numbers of a list such as ``0,2-3``."""
    found = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return []
        found += [str(number) for number in range(int(first), int(last or first) + 1)]
    return found


def _positive(text: str | None) -> float | None:
    with suppress(ValueError):
        if text and (number := float(text)) > 0:
            return number
    return None


def _mem_bytes(env: Mapping[str, str], cpus: float | None, gpus: int) -> int | None:
    """Return the memory that Slurm has given the job on this machine; in Slurm's variables it is in MiB."""
    for variable, times in (("NODE", 1.0), ("CPU", cpus or 0.0), ("GPU", float(gpus))):
        mib = _positive(env.get(f"SLURM_MEM_PER_{variable}"))
        if mib is not None and times:
            return int(mib * times) * _MIB
    return None


async def end_of(job: str) -> float | None:
    """Ask Slurm when ``job`` ends, in Unix seconds; None if it does not say so soon."""
    command = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%e")
    try:
        asked = await asyncio.create_subprocess_exec(
            *command, env=os.environ | UNIX_TIMES, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(ASK_S):
            answer, _ = await asked.communicate()
    except TimeoutError:
        return None
    finally:
        if asked.returncode is None:
            asked.kill()
            await asked.wait()
    return read_time(answer.decode(errors="replace").strip())


def read_time(text: str) -> float | None:
    """Return a time that one of Slurm's commands has printed, in Unix seconds; None if it is none."""
    with suppress(ValueError):
        return float(text) if text.isdecimal() else datetime.fromisoformat(text).timestamp()
    return None
