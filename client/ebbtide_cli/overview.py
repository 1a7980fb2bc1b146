"""Say what ``ebb`` can do, and which version it is.

This is asked for without a verb, so it is answered without what verbs need: nothing here loads click or `typing`.
"""

VERBS = {
    "Cluster": {
        "up": "Start a whole cluster on this machine",
        "down": "Suspend all jobs and stop the cluster of this machine",
        "demo": "Watch real training make room, resume and change size",
        "master": "Run the master in the foreground",
        "agent": "Run a node's agent in the foreground",
        "fake": "Break fake GPUs on purpose",
        "nodes": "Show nodes and GPUs",
        "supply": "Borrow nodes from another scheduler, as many as the jobs need",
        "deploy": "Make hosts nodes of the cluster over SSH, upgrade them, and take them back",
        "node": "Let nodes join, drain them, put them back into service, or declare them dead",
        "top": "Watch GPUs, memory, jobs and the queue",
        "dashboard": "Show cluster, queue and jobs in a browser",
        "reserve-gpus": "Reserve GPUs for one user from one time to another",
        "reservations": "Show which GPUs are reserved for whom, and when",
        "events": "Show what happened in the cluster",
        "usage": "Sum up GPU hours, and how much of them was lost or idle",
        "completion": "Make the shell complete verbs, options and ids",
        "docs": "Open the documentation, without a network",
        "doctor": "Check this node, and say what to do about each problem",
    },
    "People": {
        "login": "Log in to a master, on this or another machine",
        "logout": "Forget a login",
        "whoami": "Show which user the master takes you for",
        "user": "Manage who may use the cluster, and what they may do",
        "token": "Create, list and revoke the tokens that people log in with",
    },
    "Jobs": {
        "init": "Write a first script that can be suspended, and a configuration file",
        "submit": "Queue a job",
        "templates": "List named sets of options for 'ebb submit'",
        "ls": "List jobs",
        "show": "Show everything about one job",
        "explain": "Say why a job waits, and when it may start",
        "story": "Show every event of one job",
        "logs": "Print a job's output",
        "wait": "Wait until jobs have finished",
        "notify": "Send a test notification",
    },
    "Interactive": {
        "run": "Queue a command and follow it to its end",
        "shell": "Open a shell on a node, with GPUs of its own",
        "exec": "Start a shell or a command inside a running job",
        "notebook": "Start Jupyter on a node, and open a tunnel to it",
        "tensorboard": "Start TensorBoard on jobs' files, and open a tunnel to it",
        "tunnel": "Reach a port that a job listens on",
        "cp": "Fetch a job's files from its node",
    },
    "Studies": {
        "simulate": "Try policies on workloads, and re-run the papers' experiments",
        "replay": "Simulate a cluster's past under another policy",
        "observe": "Record what runs on a node outside the cluster, for a simulation",
        "reserve": "Compute how long to reserve for a job of unknown run time",
    },
    "Changes": {
        "suspend": "Checkpoint jobs and free their GPUs until 'ebb resume'",
        "resume": "Resume suspended jobs",
        "drill": "Suspend and resume a job, to test whether it saves and continues",
        "resize": "Give jobs another number of GPUs",
        "requeue": "Put jobs back into the queue, or submit them again",
        "set": "Give jobs another priority or weight, and arrays other limits",
        "cancel": "End jobs for good",
        "rm": "Remove finished jobs, with their logs and checkpoints",
        "hold": "Keep waiting jobs from starting",
        "release": "Let held jobs start",
    },
}
"""Every verb with one line of help, so that ``ebb --help`` imports no verb; ``x-y`` is ``verbs/x_y.command``."""
WIDEST = 110
"""Columns that a help text takes at most."""
_ABOUT = "Share GPUs: jobs that suspend, resume and change size."
_OPTIONS = {"--version": "Show the version.", "-h, --help": "Show this message and exit."}
_EXAMPLES = ("ebb up", "ebb submit --gpus 2 -- python train.py", "ebb ls", "ebb <verb> --help")


def release() -> str:
    """Return the name and version of this program."""
    from ebbtide_protos.version import VERSION

    return f"ebbtide {VERSION}"


def core() -> str:
    """Return whether the core that this program runs is compiled, in words."""
    from importlib.machinery import PathFinder

    import ebbtide_core

    found = PathFinder.find_spec("ebbtide_core.cluster", ebbtide_core.__path__)
    origin = found.origin if found is not None else None
    return "pure Python core" if origin is None or origin.endswith(".py") else "compiled core"


def overview(width: int) -> str:
    """Return the help on ``ebb``: all verbs by section, in so many columns, laid out as that of a verb."""
    from textwrap import wrap

    lines = ["Usage: ebb [OPTIONS] [COMMAND] [ARGS]...", ""]
    lines += wrap(_ABOUT, width, initial_indent="  ", subsequent_indent="  ")
    for title, listed in {"Options": _OPTIONS, **VERBS}.items():
        lines += ["", f"{title}:"]
        room = max(map(len, listed)) + 2
        for name, help in listed.items():
            first, *rest = wrap(help, max(width - room - 2, 10))
            lines.append(f"  {name:{room}}{first}")
            lines += [" " * (room + 2) + line for line in rest]
    return "\n".join([*lines, "", "  Examples:", *(f"    {line}" for line in _EXAMPLES)])


def width() -> int:
    """Return how many columns a help text takes here, as click reckons it."""
    from shutil import get_terminal_size

    return max(min(get_terminal_size().columns, WIDEST) - 2, 50)
