"""Recognises programs that start others by their names, because a request to leave must treat them differently."""

from enum import Enum, auto
from typing import Final


class ProcessKind(Enum):
    """The role of a process for the processes below it."""

    ORDINARY = auto()  # if it handles the stop signal, it looks after the processes below it
    LAUNCHER = auto()  # waits for what it started, and would pass a signal on to more processes than should have it
    SHELL = auto()  # begins one command after another; its handler of a signal may be for its own end only
    BUILDER = auto()  # like a shell, but without traps of its user; asked to end, it removes what was being made
    DRIVER = auto()  # no shell, but only waits for a child, would die by the signal, and may go on after the child
    WORKER = auto()  # serves another process, which needs it until it has saved, and looks after it
    SPAWNED = auto()  # started by Python's multiprocessing: a worker, or a rank if no other process can save


# By the name of the executable file.
_PROGRAMS: Final = {
    **dict.fromkeys(("ash", "bash", "csh", "dash", "fish", "ksh", "ksh93", "lksh", "mksh", "sh"), ProcessKind.SHELL),
    **dict.fromkeys(("tcsh", "yash", "zsh", "zsh5"), ProcessKind.SHELL),
    **dict.fromkeys(("gmake", "just", "make", "ninja", "task", "watch", "xargs"), ProcessKind.BUILDER),
    # Launchers of ranks.
    **dict.fromkeys(
        ("hydra_pmi_proxy", "mpiexec", "mpiexec.hydra", "mpirun", "orted", "orterun"), ProcessKind.LAUNCHER
    ),
    **dict.fromkeys(("prte", "prted", "prterun", "srun"), ProcessKind.LAUNCHER),
    # Launchers into an environment.
    **dict.fromkeys(
        ("apptainer", "micromamba", "pixi", "runuser", "singularity", "starter", "su"), ProcessKind.LAUNCHER
    ),
    **dict.fromkeys(("starter-suid", "sudo", "uv", "uvx"), ProcessKind.LAUNCHER),
    # Launchers around one command.
    **dict.fromkeys(
        ("catatonit", "docker-init", "dumb-init", "gdb", "ltrace", "ncu", "nsys", "perf"), ProcessKind.LAUNCHER
    ),
    **dict.fromkeys(("script", "strace", "time", "timeout", "tini", "unbuffer", "valgrind"), ProcessKind.LAUNCHER),
    # Screens, which processes that draw on them need until they have left.
    **dict.fromkeys(("Xephyr", "Xorg", "Xtigervnc", "Xvfb", "Xvnc"), ProcessKind.WORKER),
}
# By the name of the script that an interpreter runs, of which the kernel keeps 15 letters, or that the script sets.
_SCRIPTS: Final = {
    **dict.fromkeys(("parallel", "snakemake"), ProcessKind.SHELL),
    **dict.fromkeys(
        ("accelerate", "accelerate-laun", "deepspeed", "ebb:srun", "horovodrun", "pt_elastic", "torchrun"),
        ProcessKind.LAUNCHER,
    ),
    **dict.fromkeys(("conda", "hatch", "mamba", "pdm", "pipenv", "poetry", "rye"), ProcessKind.LAUNCHER),
    **dict.fromkeys(("py-spy", "scalene", "viztracer", "xvfb-run"), ProcessKind.LAUNCHER),
    "pt_data_worker": ProcessKind.WORKER,
}
# Launchers by the module that an interpreter runs with `-m`.
_MODULES: Final = frozenset(
    {"accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "horovod.runner"}
    | {"torch.distributed.launch", "torch.distributed.run"}
)
# Beginnings of arguments that Python's multiprocessing gives to an interpreter that it starts.
_OF_SPAWNED: Final = ("from multiprocessing.", "--multiprocessing-fork")
_OF_TRACKER: Final = "from multiprocessing.resource_tracker"  # it ends when the processes that it serves have ended
_INTERPRETERS: Final = ("bash", "dash", "perl", "python", "sh")


def kind_of(command: str, program: str, arguments: tuple[str, ...] = ()) -> ProcessKind:
    """Return the kind of a process with the name `command`; `program` names its executable file, empty if unknown."""
    if program.startswith(_INTERPRETERS) and command in _SCRIPTS:
        return _SCRIPTS[command]
    # busybox and toybox hold many programs in one file; there the process's own name tells.
    known = _PROGRAMS.get(command if program in ("", "busybox", "toybox") else program)
    if known is not None:
        return known
    if "-m" in arguments[:-1] and arguments[arguments.index("-m") + 1] in _MODULES:
        return ProcessKind.LAUNCHER
    if any(argument.startswith(_OF_TRACKER) for argument in arguments):
        return ProcessKind.WORKER
    if any(argument.startswith(_OF_SPAWNED) for argument in arguments):
        return ProcessKind.SPAWNED
    return ProcessKind.ORDINARY
