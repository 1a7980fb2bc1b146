"""Checks the machine around the GPUs: clock, limits, shared memory, control groups, ports."""

import ctypes
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from ebbtide_agent.doctor.finding import Finding, note, ok, problem, warning
from ebbtide_agent.doctor.subject import Subject
from ebbtide_agent.jsonfile import read_json
from ebbtide_agent.network import Network
from ebbtide_agent.processes import cgroup

GIB = 2**30
EARLIEST = 1_735_689_600.0  # the beginning of 2025: no clock of a machine that runs this is older
CLOCK_WARNING_S = 1.0
CLOCK_PROBLEM_S = 30.0
FEWEST_FILES = 4096
FEWEST_PROCESSES = 4096
LEAST_SHM_BYTES = GIB
FEWEST_PORTS = 100
_TIME_ERROR = 5  # of adjtimex: the clock is not synchronised
_TIMEX_BYTES = 512  # more than struct timex has anywhere
_LISTEN = "0A"


def clock(subject: Subject) -> Iterator[Finding]:
    """Check whether the clock is right, as far as the master and the kernel know."""
    yield judge_clock(time.time(), subject.clock_ahead_s, subject.clock_doubt_s)
    if not _synchronised():
        yield note("clock", "the kernel says that it is not synchronised", "sudo timedatectl set-ntp true")


def judge_clock(now: float, ahead_s: float | None, doubt_s: float) -> Finding:
    """Judge this machine's time in Unix seconds, which is `ahead_s` ahead of the master's, give or take `doubt_s`."""
    advice = "sudo timedatectl set-ntp true, and wait until timedatectl says that it is synchronised"
    if now < EARLIEST:
        return problem("clock", f"shows {time.strftime('%Y-%m-%d', time.gmtime(now))}", advice)
    if ahead_s is None:
        return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))
    off_s = max(0.0, abs(ahead_s) - doubt_s)
    text = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the master's"
    if off_s > CLOCK_PROBLEM_S:
        return problem("clock", text, advice)
    if off_s > CLOCK_WARNING_S:
        return warning("clock", text, advice)
    return ok("clock", "agrees with the master's")


def limits(subject: Subject) -> Iterator[Finding]:
    """Check the limits that jobs inherit: the agent's if one runs, else those of this process."""
    whose = "the agent's" if subject.agent_pid else "this shell's"
    unit = "in the agent's unit: {}; or before it starts: {}"
    short = False
    for name, which, least, setting, command in (
        ("open files", resource.RLIMIT_NOFILE, FEWEST_FILES, "LimitNOFILE=65536", "ulimit -n 65536"),
        ("processes", resource.RLIMIT_NPROC, FEWEST_PROCESSES, "LimitNPROC=infinity", "ulimit -u unlimited"),
    ):
        soft = _limit(subject.agent_pid, which)
        if soft is not None and soft < least:
            short = True
            text = f"{whose} limit of {name} is {soft}: loaders with many workers fail"
            yield warning("limits", text, unit.format(setting, command))
    if not short:
        yield ok("limits", f"{whose} limits of open files and processes are at least {FEWEST_FILES}")


def shared_memory(path: Path = Path("/dev/shm")) -> Finding:
    """Check the shared memory through which DataLoader workers and NCCL pass data."""
    advice = "sudo mount -o remount,size=50% /dev/shm (in a container: docker run --shm-size=8g, or --ipc=host)"
    try:
        found = os.statvfs(path)
    except OSError as error:
        return problem("shared memory", f"{path}: {error.strerror}", "sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    return judge_shared_memory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, str(path), advice)


def judge_shared_memory(size: int, free: int, path: str, advice: str) -> Finding:
    """Judge the shared memory by its size and free space, in bytes."""
    text = f"{path}: {free / GIB:.1f} of {size / GIB:.1f} GiB free"
    if size < LEAST_SHM_BYTES:
        return warning("shared memory", f"{text}: workers of a DataLoader die of a bus error when it is full", advice)
    if free < LEAST_SHM_BYTES // 2:
        return warning(
            "shared memory", f"{text}: other programs left files there", f"ls -lS {path}, and remove what is dead"
        )
    return ok("shared memory", text)


def control_groups(subject: Subject) -> Finding:
    """Check whether each attempt can get a control group of its own."""
    own = cgroup.own_group(Path("/proc", str(subject.agent_pid or "self")))
    if own is None:
        text = "no cgroup v2 here: what escapes a job's process tree is not found at its end"
        return note("control groups", text, "boot with systemd.unified_cgroup_hierarchy=1")
    if usable(own):
        return ok("control groups", f"one for each attempt, below {own}")
    whose = "the agent's" if subject.agent_pid else "this shell's"
    text = f"{whose} group {own} is not delegated: what escapes a job's process tree is not found at its end"
    advice = "Delegate=yes in the agent's unit; or begin with: systemd-run --user --scope -p Delegate=yes ebb up"
    return note("control groups", text, advice)


def job_limits(subject: Subject) -> Finding:
    """Check whether the CPUs and the memory that jobs request are enforced, as the agent has found out."""
    try:
        reported = read_json(subject.home / "nodes" / subject.node / "agent.json") if subject.agent_pid else None
    except (OSError, ValueError):
        reported = None
    if reported is not None and "mem_limits" in reported:
        return judge_job_limits(str(reported["cpu_limits"]), str(reported["mem_limits"]))
    return note("job limits", "an agent that runs says whether a job's --cpus and --mem are enforced here")


def judge_job_limits(cpus: str, mem: str) -> Finding:
    """Judge what the agent says becomes of `--cpus` and of `--mem`."""
    text = f"a job's --cpus is {cpus}, its --mem {mem}"
    if (cpus, mem) == ("enforced", "enforced"):
        return ok("job limits", text)
    watched = ": looked at every second, and what grows faster is seen too late" if mem == "watched" else ""
    advice = "the units in deploy/systemd; or begin with: systemd-run --user --scope -p Delegate=yes ebb up"
    return note("job limits", text + watched, advice)


def usable(group: Path) -> bool:
    """Return whether this user may make groups below it, as `cgroup.delegated` checks for its own process."""
    return all(os.access(path, os.W_OK) for path in (group, group / "cgroup.kill", group / "cgroup.procs"))


def ports(subject: Subject, proc: Path = Path("/proc/net")) -> Iterator[Finding]:
    """Check the ports on which ranks of jobs on several nodes meet."""
    network = Network.parse("", subject.ports)
    taken = listening(proc)
    span = f"{network.first_port}-{network.last_port}"
    free = sum(port not in taken for port in network.ports)
    if free == 0:
        yield problem("ports", f"all of {span} are taken", "ebb agent --ports FIRST-LAST with others")
    elif free < min(FEWEST_PORTS, len(network.ports)):
        yield warning("ports", f"only {free} of {span} are free", "ebb agent --ports FIRST-LAST with others")
    else:
        yield ok("ports", f"{free} of {len(network.ports)} free in {span}, for jobs on several nodes")
    if outgoing := _outgoing(network):
        text = f"the kernel takes ports of outgoing connections from {outgoing}, which overlaps {span}"
        yield warning("ports", text, 'sudo sysctl -w net.ipv4.ip_local_port_range="32768 60999"')


def listening(proc: Path) -> frozenset[int]:
    """Return the ports that are listened on, IPv4 and IPv6, from the kernel's tables in ``/proc/net``."""
    found = set[int]()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        cells = (line.split() for line in lines)
        found |= {int(cell[1].rpartition(":")[2], 16) for cell in cells if cell[3] == _LISTEN}
    return frozenset(found)


def ptrace_scope() -> int | None:
    """Return Yama's setting for which processes may trace others; None if the kernel has no Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def _outgoing(network: Network) -> str:
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return ""
    return f"{first}-{last}" if first <= network.last_port and network.first_port <= last else ""


def _limit(pid: int, which: int) -> int | None:
    """Return the soft limit; None if there is none, or it may not be read."""
    try:
        soft = resource.prlimit(pid, which)[0]
    except (OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _synchronised() -> bool:
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return True
    return state != _TIME_ERROR
