"""Stands in for Slurm's `srun`: runs a command as a number of tasks on the nodes of its own job.

The script runs on the job's first node. On each other node this program runs in the script's place (`--follow`), and
waits for the steps of the first node's `srun` in a directory that all nodes share. The output of each task is in its
node's log.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")
    Step = dict[str, Any]


def named(text: str) -> frozenset[str]:
    """Return the words of a line."""
    return frozenset(text.split())


NAME = "ebb:srun"
POLL_S = 0.1
USAGE = 1
PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, errno.EDQUOT})
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

LETTERS = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "G": "gpus", "w": "nodelist", "o": "output", "e": "error",
    "D": "chdir", "K": "kill-on-bad-exit", "l": "label", "u": "unbuffered", "m": "distribution", "J": "job-name",
    "t": "time", "W": "wait", "O": "overcommit", "k": "no-kill", "p": "partition", "A": "account", "q": "qos",
    "Q": "quiet", "v": "verbose", "s": "oversubscribe", "x": "exclude", "i": "input", "r": "relative",
}  # fmt: skip
WITHOUT_VALUE = named(
    "label unbuffered exact overlap overcommit no-kill quiet verbose oversubscribe exclusive kill-on-bad-exit pty "
    "multi-prog contiguous"
)
USED = named("ntasks nodes ntasks-per-node gpus gpus-per-node gpus-per-task gres nodelist output error chdir export")
IGNORED = named(
    "cpus-per-task mem mem-per-cpu mem-per-gpu cpu-bind gpu-bind mem-bind distribution hint job-name time wait "
    "threads-per-core partition account qos jobid cpus-per-gpu label unbuffered exact overlap overcommit no-kill quiet "
    "verbose oversubscribe exclusive kill-on-bad-exit contiguous comment ntasks-per-socket signal"
)
OF_THE_NODE = (
    *("EBB_", "CUDA_", "SLURM_NODEID", "SLURMD_NODENAME", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOSTNAME"),
)


def main(arguments: list[str]) -> int:
    """Run the tasks, and return their highest exit code."""
    if arguments[:1] == ["--follow"]:
        return follow(deaf=arguments[1:] == ["--deaf"])
    options, command = parse(arguments)
    if not command:
        refuse("there is no command")
    step = make_step(options, command)
    return run_everywhere(step)


def refuse(reason: str) -> None:
    """End this program with the reason why nothing is run."""
    sys.exit(f"srun (of Ebbtide): {reason}")


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options before the command, by their long names, and the command."""
    options, words = {}, list(arguments)
    while words and words[0].startswith("-") and words[0] != "--":
        name, value = take(words)
        if name == "mpi" and value not in ("none", "list"):
            refuse(f"--mpi={value}: MPI is not started here: run mpirun in its place")
        elif name not in USED | IGNORED and name != "mpi":
            refuse(f"--{name} is not known here")
        options[name] = value
    return options, words[1:] if words[:1] == ["--"] else words


def take(words: list[str]) -> tuple[str, str]:
    """Take the next option and its value off the words."""
    word = words.pop(0)
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
    else:
        name, value = LETTERS.get(word[1], word[1]), word[2:].removeprefix("=")
        equals = value
    if not equals and name not in WITHOUT_VALUE:
        if not words:
            refuse(f"{word} needs a value")
        value = words.pop(0)
    return name, value


def make_step(options: dict[str, str], command: list[str]) -> Step:
    """Return the step for all nodes; its shares are, by a node's rank, the node's first task and number of tasks."""
    names = os.environ["SLURM_JOB_NODELIST"].split(",")
    ranks = chosen_nodes(options, names)
    whole = len(ranks) == len(names)
    of_job = number(os.environ.get("SLURM_NTASKS", "0")) if whole else 0
    by_node = number(options.get("ntasks-per-node", "0")) * len(ranks)
    tasks = number(options.get("ntasks", "0")) or by_node or of_job or len(ranks)
    if tasks < len(ranks):
        ranks = ranks[:tasks]
    shares, first = {}, 0
    for place, rank in enumerate(ranks):
        count = tasks // len(ranks) + (place < tasks % len(ranks))
        shares[str(rank)] = [first, count]
        first += count
    return {
        "command": command,
        "cwd": os.path.abspath(options.get("chdir", os.getcwd())),
        "env": dict(os.environ) | exported(options.get("export", "")),
        "tasks": tasks,
        "shares": shares,
        "gpus": gpus_per_node(options, len(ranks)),
        "gpus_per_task": number(
            options.get("gpus-per-task", os.environ.get("SLURM_GPUS_PER_TASK", "0")).split(":")[-1]
        ),
        "output": options.get("output", ""),
        "error": options.get("error", ""),
        "kill": options.get("kill-on-bad-exit", "0") in ("", "1"),
    }


def exported(text: str) -> dict[str, str]:
    """Return the variables that ``--export=ALL,NAME=VALUE`` sets; the script's own are always passed on."""
    return dict(item.split("=", 1) for item in text.split(",") if "=" in item)


def chosen_nodes(options: dict[str, str], names: list[str]) -> list[int]:
    """Return the ranks of the step's nodes."""
    first = (os.environ.get("MASTER_ADDR"), os.uname().nodename)
    wanted = [names[0] if name in first else name for name in options.get("nodelist", "").split(",") if name]
    if unknown := [name for name in wanted if name not in names]:
        refuse(f"--nodelist: {unknown[0]!r} is no node of this job: there are {', '.join(names)}")
    count = number(options.get("nodes", "0").split("-")[0]) or len(wanted) or len(names)
    if count > len(names):
        refuse(f"--nodes: {count} are more than the {len(names)} of this job")
    return [names.index(name) for name in [*wanted, *(name for name in names if name not in wanted)]][:count]


def gpus_per_node(options: dict[str, str], nodes: int) -> int:
    """Return how many of each node's GPUs a step needs; 0 means that it may use all."""
    if "gpus" in options:
        return -(-number(options["gpus"].split(":")[-1]) // nodes)
    text = options.get("gpus-per-node") or options.get("gres", "")
    if text in ("", "none"):
        return 0
    last = text.split(":")[-1]
    return number(last) if last.isdecimal() else 1


def number(text: str) -> int:
    """Parse a number of the script's."""
    if not text.isdecimal():
        refuse(f"{text!r} is not a number")
    return int(text)


def run_everywhere(step: Step) -> int:
    """Ask the other nodes for their tasks, run this node's, and wait for all of them."""
    here = os.environ.get("SLURM_NODEID", "0")
    others = [rank for rank in step["shares"] if rank != here]
    number_of_step = announce(step) if others else own_count()
    running: dict[int, int] = {}
    early: set[int] = set()
    pass_on(running, early, number_of_step if others else None)
    code = run_here(step, here, number_of_step, running, early) if here in step["shares"] else 0
    return max([code, *(answer(number_of_step, rank) for rank in others)])


def pass_on(running: dict[int, int], early: set[int], index: int | None) -> None:
    """Forward every signal to the tasks on this node, and on the other nodes of step `index` if it is given.

    Those that come before this node has tasks are added to `early`, because it may have to wait for GPUs.
    The stop signal does not come this way: the search for processes that handle it looks past one of this name.
    """
    with open("/proc/self/comm", "w") as file:
        file.write(NAME)
    times: dict[int, int] = dict.fromkeys(STOP_SIGNALS, 0)

    def forward(signum: int, _: object) -> None:
        if not running:
            early.add(signum)
        for pid in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        if index is not None:
            times[signum] += 1
            again = f".{times[signum]}" if times[signum] > 1 else ""  # older nodes hear the first only
            path = os.path.join(os.environ["EBB_SLURM_STEPS"], f"{index}.{int(signum)}.signal{again}")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

    for signum in STOP_SIGNALS:
        signal.signal(signum, forward)


def own_count() -> int:
    """Return a number for a step that has only this node."""
    return time.monotonic_ns() // 1_000_000 % 1_000_000


def announce(step: Step) -> int:
    """Write the step where the other nodes look for it, and return its number."""
    folder = os.environ["EBB_SLURM_STEPS"]
    draft = os.path.join(folder, f".{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(step, file)
    index = 0
    while True:
        try:
            os.link(draft, os.path.join(folder, f"{index}.json"))
        except FileExistsError:
            index += 1
        else:
            os.unlink(draft)
            return index


def answer(index: int, rank: str) -> int:
    """Wait for the exit code of that node's tasks and return it."""
    path = os.path.join(os.environ["EBB_SLURM_STEPS"], f"{index}.{rank}.exit")
    while not os.path.exists(path):
        look_again()
    return int(insist(lambda: read(path)))


def look_again() -> None:
    """Wait a little, and make a file, so that a network file system drops its cache of the directory."""
    time.sleep(POLL_S)
    probe = os.path.join(os.environ["EBB_SLURM_STEPS"], f".probe-{os.uname().nodename}-{os.getpid()}")
    with contextlib.suppress(OSError):
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        os.unlink(probe)


def insist(call: Callable[[], T]) -> T:
    """Make the call again while the file system is full or does not answer, and return the result."""
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in PASSING:
                raise
        time.sleep(POLL_S)


def read(path: str) -> str:
    """Return the text of a file."""
    with open(path) as file:
        return file.read()


def write(path: str, text: str) -> None:
    """Write a file that appears whole."""
    with open(f"{path}.part", "w") as file:
        file.write(text)
    os.rename(f"{path}.part", path)


def follow(*, deaf: bool) -> int:
    """Run the steps on a later node until the script has ended; if `deaf`, drop the stop signals."""
    for signum in STOP_SIGNALS if deaf else ():
        signal.signal(signum, lambda *_: None)  # only the script gets it; SIG_IGN would be inherited by tasks
    folder, rank = os.environ["EBB_SLURM_STEPS"], os.environ["SLURM_NODEID"]
    steps: dict[int, int] = {}
    heard: set[str] = set()
    index = 0
    while True:
        names = set(insist(lambda: os.listdir(folder)))
        if f"{index}.json" in names:
            if pid := begin(os.path.join(folder, f"{index}.json"), rank, index):
                steps[index] = pid
            index += 1
            continue
        # One signal of a kind for a step at each look, because those that are pending at once are delivered as one.
        for name in {name.partition(".signal")[0]: name for name in names - heard}.values():
            if is_heard(name, steps, index):
                heard.add(name)
        if "end" in names:
            return 0
        bury(steps)
        look_again()


def begin(path: str, rank: str, index: int) -> int:
    """Start this node's part of a step, and return the pid of its process; 0 if it has none or the script has ended."""
    try:
        step = json.loads(insist(lambda: read(path)))
    except FileNotFoundError:
        return 0
    if rank not in step["shares"]:
        return 0
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # in the new process, until its tasks run
    pid = os.fork()
    if pid == 0:
        report(step, rank, index)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return pid


def is_heard(name: str, steps: dict[int, int], begun: int) -> bool:
    """Forward the signal that the first node's `srun` got, if the file says so; False: its step has not begun here."""
    index, signum, kind, *_ = [*name.split("."), "", ""]
    if kind != "signal" or not (index.isdecimal() and signum.isdecimal()):
        return True
    if pid := steps.get(int(index)):
        os.kill(pid, int(signum))
    return int(index) < begun


def report(step: Step, rank: str, index: int) -> None:
    """Run this node's tasks in this forked process, and write their exit code for the first node."""
    code = USAGE
    try:
        running: dict[int, int] = {}
        early: set[int] = set()
        pass_on(running, early, None)
        code = run_here(step, rank, index, running, early)
    finally:
        path = os.path.join(os.environ["EBB_SLURM_STEPS"], f"{index}.{rank}.exit")
        insist(lambda: write(path, str(code)))
        os._exit(0)


def bury(steps: dict[int, int]) -> None:
    """Remove the steps that have ended."""
    for index, pid in list(steps.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del steps[index]


def run_here(step: Step, rank: str, index: int, running: dict[int, int], early: set[int]) -> int:
    """Run this node's tasks, and return their highest exit code; signals that came `early` reach them, too."""
    first, count = step["shares"][rank]
    gpus = leased(step["gpus"])
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are for all tasks, so none comes between two
    for local in range(count):
        pid = os.fork()
        if pid == 0:
            become(step, task_environment(step, rank, first + local, local, index, gpus))
        running[pid] = local
    for pid in running:
        for signum in early:
            os.kill(pid, signum)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    worst = 0
    while running:
        pid, status = os.wait()
        if running.pop(pid, None) is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        worst = max(worst, code if code >= 0 else 128 - code)
        if code and step["kill"]:
            for other in running:
                os.kill(other, signal.SIGTERM)
    return worst


def task_environment(step: Step, rank: str, task: int, local: int, index: int, gpus: list[str]) -> dict[str, str]:
    """Return the environment of one task: the script's at the call of `srun`, with this node's own variables."""
    own = {name: value for name, value in os.environ.items() if name.startswith(OF_THE_NODE)}
    each = step["gpus_per_task"]
    if each and len(gpus) > each:
        gpus = gpus[local * each : (local + 1) * each]
    return {
        **step["env"],
        **own,
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": rank,
        "SLURM_NTASKS": str(step["tasks"]),
        "SLURM_NPROCS": str(step["tasks"]),
        "SLURM_STEP_NUM_TASKS": str(step["tasks"]),
        "SLURM_STEP_NUM_NODES": str(len(step["shares"])),
        "SLURM_STEP_ID": str(index),
        "SLURM_STEPID": str(index),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }


def leased(count: int) -> list[str]:
    """Wait for `count` of this node's GPUs that no other step has while this process lives; 0: return all at once."""
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    if not 0 < count < len(gpus):
        if count > len(gpus):
            refuse(f"{count} GPUs are more than the {len(gpus)} that the job has here")
        return gpus
    while len(mine := list(free_gpus(gpus, count))) < count:
        time.sleep(POLL_S)
    return mine


def free_gpus(gpus: list[str], count: int) -> Iterator[str]:
    """Lock up to `count` GPUs; if fewer are free, release the locks again by closing their descriptors."""
    folder = os.path.dirname(os.environ["EBB_SOCKET"])
    held: list[int] = []
    for index, gpu in enumerate(gpus):
        descriptor = os.open(os.path.join(folder, f"gpu-{index}.lock"), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        held.append(descriptor)
        yield gpu
        if len(held) == count:
            return
    for descriptor in held:
        os.close(descriptor)


def become(step: Step, environment: dict[str, str]) -> None:
    """Become the task."""
    try:
        for signum in (signal.SIGPIPE, *STOP_SIGNALS):
            signal.signal(signum, signal.SIG_DFL)  # Python ignores the first, and the task would inherit that
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.chdir(step["cwd"])
        redirect(step, environment)
        os.execvpe(step["command"][0], step["command"], environment)
    except OSError as error:
        os.write(2, f"srun (of Ebbtide): {step['command'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def redirect(step: Step, environment: dict[str, str]) -> None:
    """Redirect the output to the files of --output and --error, if they were given."""
    if step["output"]:
        descriptor = open_output(step["output"], environment)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    if step["error"]:
        os.dup2(open_output(step["error"], environment), 2)


def open_output(pattern: str, environment: dict[str, str]) -> int:
    """Open the file of a pattern with %j, %J, %t, %n, %N, %s, %x, %A or %a in it."""
    meant = {"%j": "SLURM_JOB_ID", "%J": "SLURM_JOB_ID", "%t": "SLURM_PROCID", "%n": "SLURM_NODEID"}
    meant |= {"%N": "SLURMD_NODENAME", "%s": "SLURM_STEP_ID", "%x": "SLURM_JOB_NAME"}
    meant |= {"%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    for mark, variable in meant.items():
        pattern = pattern.replace(mark, environment.get(variable, "0"))
    return os.open(pattern, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


if __name__ == "__main__":
    # Python's own handler would keep the stop signal from the tasks.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
