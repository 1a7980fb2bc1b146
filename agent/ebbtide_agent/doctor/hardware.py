"""Judges what the driver and the GPUs answer. Nothing here asks them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ebbtide_agent.doctor.finding import Finding, note, ok, problem, warning
from ebbtide_agent.gpu.backend import Driver, Gpu, GpuProcess, GpuReading, GpuSettings

SLOW_READING_S = 0.2
OLDEST_DRIVER = 535  # the first whose memory readings leave out what the driver keeps for itself
SWAP_DRIVER = 580
IDLE_BYTES = 512 * 1024 * 1024
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Answer:
    """What one GPU answered, and how long its reading took."""

    gpu: Gpu
    reading: GpuReading
    settings: GpuSettings
    seconds: float


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """The owner of a process on a GPU; `alive` is None if this machine does not show the process at all."""

    alive: bool | None
    user: str = ""
    command: str = ""
    ours: bool = False
    parent: int = 0


Who = Callable[[int], GpuHolder]


def judge_absence(reason: str, devices: int) -> Finding:
    """Judge why no GPU answers, by NVML's `reason` and the number of NVIDIA's devices on the PCI bus."""
    if not devices:
        advice = "nothing, if this machine has none (ebb agent --gpus none); else install the NVIDIA driver"
        return note("GPUs", f"none: {reason}", advice)
    if "upgraded" in reason:
        advice = "reboot, or stop what uses GPUs and: sudo modprobe -r nvidia_uvm nvidia && nvidia-smi"
        return problem("driver", reason, advice)
    advice = "sudo modprobe nvidia && nvidia-smi (if that fails, install the driver for this kernel and reboot)"
    return problem("driver", f"an NVIDIA GPU is on the PCI bus, and no driver answers: {reason}", advice)


def judge_count(gpus: Sequence[Gpu], driven: int | None) -> Finding:
    """Compare the GPUs that NVML names with the driver's number of devices; None: they are not on this bus."""
    whole = len({gpu.parent or gpu.uuid for gpu in gpus})
    if driven is not None and driven > whole:
        text = f"the driver has {driven} devices and answers for {whole} of them"
        return problem("GPUs", text, "sudo dmesg | grep -iE 'xid|nvrm'; a GPU that fell off the bus needs a reboot")
    return ok("GPUs", kinds(gpus) + (" (fake)" if driven is None else ""))


def judge_driver(driver: Driver) -> Finding:
    """Judge the driver's version."""
    major = major_version(driver.version)
    text = f"{driver.version or 'version unknown'}, CUDA {driver.cuda or 'unknown'}"
    if major is not None and major < OLDEST_DRIVER:
        return warning("driver", f"{text}: older than {OLDEST_DRIVER}", "upgrade the NVIDIA driver")
    return ok("driver", text)


def judge_swap(driver: Driver, ptrace_scope: int | None, single_user: bool, gpus: Sequence[Answer] = ()) -> Finding:
    """Judge whether `ebb submit --suspend swap` can work. `single_user`: the agent is not root."""
    if gpus and all(answer.gpu.parent for answer in gpus):
        return note("swap", "not on MIG slices")
    major = major_version(driver.version)
    if major is None or major < SWAP_DRIVER:
        text = f"--suspend swap needs driver {SWAP_DRIVER} or newer, this is {driver.version or 'unknown'}"
        return note("swap", text, "upgrade the NVIDIA driver, if a job wants it")
    if ptrace_scope is not None and ptrace_scope >= 2 and single_user:
        text = f"kernel.yama.ptrace_scope is {ptrace_scope}: only root may take hold of another process"
        return note("swap", text, "sudo sysctl -w kernel.yama.ptrace_scope=1, if a job wants --suspend swap")
    return ok("swap", f"driver {driver.version} can move a job's GPU memory to the host")


def judge_gpu(answer: Answer) -> Iterator[Finding]:
    """Judge the health, speed of answering, and settings of one GPU."""
    gpu, reading, check = answer.gpu, answer.reading, f"GPU {answer.gpu.index}"
    if not reading.healthy:
        yield problem(check, f"{gpu.model} ({gpu.uuid}): {reading.unhealthy_reason}", _cure(gpu, reading))
        return
    if answer.seconds > SLOW_READING_S:
        text = f"{gpu.model}: a reading took {answer.seconds:.2f} s"
        yield warning(check, text, "sudo nvidia-smi -pm 1 (without persistence mode every question wakes the driver)")
    else:
        yield ok(check, f"{gpu.model}, {_used(gpu, reading)}, answers in {1000 * answer.seconds:.0f} ms")
    yield from _judge_settings(check, gpu, answer.settings)


def judge_slices(gpus: Sequence[Answer]) -> Iterator[Finding]:
    """Judge MIG slices, and GPUs that are in MIG mode and have no slice."""
    slices = [answer for answer in gpus if answer.gpu.parent]
    if slices:
        parents = len({answer.gpu.parent for answer in slices})
        yield note("MIG", f"{len(slices)} slices of {parents} GPU{'s' * (parents > 1)}: each is a slot; no MPS on them")
    for answer in gpus:
        if answer.settings.mig and not answer.gpu.parent:
            yield problem(
                "MIG",
                f"GPU {answer.gpu.index} is in MIG mode and has no slice: no job can run on it",
                f"sudo nvidia-smi mig -i {answer.gpu.index} -lgip, then -cgi PROFILES -C; or sudo nvidia-smi -i "
                f"{answer.gpu.index} -mig 0",
            )


def judge_sharing(gpus: Sequence[Answer], control: str | None, fake: bool) -> Finding:
    """Judge how several jobs would share a GPU. `control` is the path of MPS's control program, or None."""
    if fake:
        return ok("MPS", "fake GPUs are shared without it")
    if control is None:
        text = (
            "nvidia-cuda-mps-control is not on PATH: jobs that share a GPU take turns, with PyTorch's own limits only"
        )
        return note("MPS", text, "install it (part of the driver's compute package: nvidia-compute-utils)")
    if gpus and all(answer.gpu.parent for answer in gpus):
        return note("MPS", "not used: all GPUs are MIG slices")
    return ok("MPS", control)


def judge_processes(gpus: Sequence[Answer], who: Who) -> Iterator[Finding]:
    """Judge processes on GPUs that belong to no job, and GPU memory that no process holds."""
    strange = False
    for answer in gpus:
        for process in answer.reading.processes or ():
            holder = who(process.pid)
            if not holder.ours:
                strange = True
                yield _judge_process(answer.gpu, process, holder)
        if (lost := _held_by_nobody(answer.reading)) > IDLE_BYTES:
            strange = True
            text = f"{_gib(lost)} of GPU {answer.gpu.index} are used by no process that shows"
            advice = f"sudo fuser -v /dev/nvidia{answer.gpu.index}; if nobody has it: sudo nvidia-smi --gpu-reset -i "
            yield warning("processes", text, f"{advice}{answer.gpu.index}")
    if gpus and not strange:
        yield ok("processes", "none on the GPUs that is not a job's")


def visible(gpus: Sequence[Gpu]) -> int:
    """Return how many GPUs a CUDA program sees if none is hidden from it; of MIG slices it sees only one."""
    return 1 if any(gpu.parent for gpu in gpus) else len(gpus)


def major_version(version: str) -> int | None:
    """Return 580 for "580.65.06"; None if the version is not known."""
    match = re.match(r"\d+", version)
    return int(match[0]) if match else None


def kinds(gpus: Sequence[Gpu]) -> str:
    """Return the number of GPUs of each model, such as ``2 x H100, 1 x T4``."""
    counts: Mapping[str, int] = {gpu.model: sum(other.model == gpu.model for other in gpus) for gpu in gpus}
    return ", ".join(f"{count} x {model}" for model, count in counts.items())


def _judge_settings(check: str, gpu: Gpu, settings: GpuSettings) -> Iterator[Finding]:
    if settings.persistence is False:
        text = "persistence mode is off: the first CUDA call of a job takes seconds, and NVML answers slowly"
        yield warning(check, text, f"sudo nvidia-smi -i {gpu.index} -pm 1 (or enable nvidia-persistenced)")
    if settings.compute_mode == "prohibited":
        text = "compute mode is 'prohibited': no job can use it"
        yield problem(check, text, f"sudo nvidia-smi -i {gpu.index} -c DEFAULT")
    elif settings.compute_mode not in (None, "default"):
        text = (
            f"compute mode is {settings.compute_mode!r}: jobs share it only through MPS, and DataLoader forks may fail"
        )
        yield note(check, text, f"sudo nvidia-smi -i {gpu.index} -c DEFAULT, unless that is wanted")


def _judge_process(gpu: Gpu, process: GpuProcess, holder: GpuHolder) -> Finding:
    held = "" if process.mem_bytes is None else f" with {_gib(process.mem_bytes)}"
    where = f"on GPU {gpu.index}{held}"
    if holder.alive is None:
        text = f"pid {process.pid} {where} is not shown by this machine: it is in a container, or this is one"
        return note("processes", text, "run the agent in the host's pid namespace (docker run --pid=host)")
    name = f"{holder.command or 'pid'} (pid {process.pid} of {holder.user or '?'})"
    if not holder.alive:
        text = f"{name} {where} is dead, and its parent has not noticed"
        return warning("processes", text, f"kill -CHLD {holder.parent}; if it stays: kill {holder.parent}")
    return note(
        "processes", f"{name} {where} is not a job of Ebbtide", f"wait for it, or ask {holder.user or 'its owner'}"
    )


def _held_by_nobody(reading: GpuReading) -> int:
    """Return the bytes in use beyond what processes hold; 0 if any of that is not known."""
    if reading.processes is None or reading.mem_used_bytes is None:
        return 0
    held = [process.mem_bytes for process in reading.processes]
    return 0 if None in held else max(0, reading.mem_used_bytes - sum(each or 0 for each in held))


def _cure(gpu: Gpu, reading: GpuReading) -> str:
    reason = reading.unhealthy_reason.lower()
    if "answer" in reason:
        return "sudo dmesg | grep -i xid; a driver that hangs goes on after a reboot only"
    return f"sudo dmesg | grep -i xid; then sudo nvidia-smi --gpu-reset -i {gpu.index}, or reboot"


def _used(gpu: Gpu, reading: GpuReading) -> str:
    total = reading.mem_total_bytes or gpu.mem_bytes
    return _gib(total) if reading.mem_used_bytes is None else f"{_gib(reading.mem_used_bytes)} of {_gib(total)} used"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
