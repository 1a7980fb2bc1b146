"""Jobs in the states in which the examples of the help have theirs."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from tests.e2e.cluster import wait_for
from tests.e2e.stage import Stage
from tests.e2e.terminal import on_terminal

SIMPLE = ("--cpu-only", "--exclude", "right", "--exclude", "ws3")
"""For jobs that take no GPU away from examples, on the first node."""


def job(stage: Stage, kind: str, taken: tuple[str, ...] = ()) -> str:
    """A job of this kind that is none of ``taken``: one from before if it still is what it was, else a new one."""
    make, states = KINDS[kind]
    known = stage.jobs.setdefault(kind, [])
    if states:
        listed = {found["id"]: found["state"] for found in stage.cluster.facts("ls", "--all")}
        known[:] = [id for id in known if listed.get(id) in states]
    for id in known:
        if states and id not in taken:
            return id
    known.append(make(stage))
    return known[-1]


def clear(stage: Stage) -> None:
    """End every job that is not over and does not stay for others, and every reservation."""
    kept = {id for kind, ids in stage.jobs.items() if kind not in CROWDING for id in ids}
    over = ("COMPLETED", "FAILED", "CANCELLED")
    listed = stage.cluster.facts("ls")
    rest = [found["id"] for found in listed if found["state"] not in over and found["id"] not in kept]
    if rest:
        stage.cluster.ebb("cancel", "--now", "--wait", *rest)
    for found in stage.cluster.facts("reservations"):
        stage.cluster.ebb("reserve-gpus", "--cancel", found["id"])


def queued(*options: str, state: str = "", step: int = 0) -> Callable[[Stage], str]:
    """Makes a job, and waits until it is in a state and at a step."""

    def make(stage: Stage) -> str:
        cluster = stage.cluster
        id = stage.perform(f"ebb submit {' '.join(options)}").strip()
        if state:
            cluster.wait_for_state(id, state)
        if step:
            cluster.wait_for_step(id, step)
        return id

    return make


TRAINING = ("--", "python", "train.py")
KINDS: dict[str, tuple[Callable[[Stage], str], tuple[str, ...]]] = {}
"""How a job of each kind is made, and the states in which it still is one; without any, it is made anew each time."""

CROWDING = ("crowded out", "elastic", "on two nodes")
"""Kinds that take GPUs away from others."""


def twice(stage: Stage) -> str:
    """A job that was suspended and goes on: it has two attempts, and a checkpoint."""
    id = queued(*SIMPLE, *TRAINING, step=5)(stage)
    stage.cluster.ebb("suspend", "--wait", id)
    stage.cluster.ebb("resume", "--wait", id)
    stage.cluster.wait_for_step(id, stage.cluster.show(id)["progress"]["step"] + 1)
    return id


def training_array(stage: Stage) -> str:
    """An array with a task that has reported its loss."""
    id = queued(*SIMPLE, "--array", "0-3", *TRAINING)(stage)
    stage.cluster.wait_for_step(f"{id}.0", 1)
    return id


def suspended(stage: Stage) -> str:
    id = queued(*SIMPLE, *TRAINING, step=5)(stage)
    stage.cluster.ebb("suspend", "--wait", id)
    return id


def left_shell(stage: Stage) -> str:
    """A shell that somebody has left, and can come back to."""
    with on_terminal(stage.cluster, "shell", "--cpu-only", "--", "sh") as terminal:
        terminal.until("comes back")
        terminal.until("$ " if os.getuid() else "# ")
        terminal.type("~.")
        assert terminal.end() == 0
    return latest(stage)


def notebook(stage: Stage) -> str:
    """A notebook that runs on without a tunnel."""
    stage.interrupt("ebb notebook --cpu-only", lambda text: "127.0.0.1" in text, signal.SIGINT)
    return latest(stage)


def serving(stage: Stage) -> str:
    """A job that listens on the port that examples name 8000."""
    port = stage.ports["8000"]
    id = queued(*SIMPLE, "--", "python", "-m", "http.server", "--bind", "127.0.0.1", port, state="RUNNING")(stage)
    wait_for("it listens", lambda: listens(int(port)))
    return id


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def latest(stage: Stage) -> str:
    return str(
        max((found["id"] for found in stage.cluster.facts("ls", "--all")), key=lambda id: [*map(int, id.split("."))])
    )


def full(stage: Stage) -> str:
    """A job that waits because others have all GPUs."""
    for gpus in ("4", "4"):
        queued("--gpus", gpus, "--suspend", "none", "--time", "2h", "--", "sleep", "600", state="RUNNING")(stage)
    return queued("--gpus", "2", *TRAINING)(stage)


KINDS |= {
    "running": (queued(*SIMPLE, *TRAINING, step=5), ("RUNNING",)),
    "waiting": (queued("--cpu-only", "--begin", "+3h", *TRAINING), ("PENDING",)),
    "crowded out": (full, ()),
    "held": (queued("--hold", *SIMPLE, *TRAINING), ("HELD",)),
    "suspended": (suspended, ("SUSPENDED",)),
    "twice": (twice, ("RUNNING",)),
    "ending": (queued(*SIMPLE, "--", "sleep", "1"), ()),
    "completed": (queued(*SIMPLE, "--", "true", state="COMPLETED"), ("COMPLETED",)),
    "array": (queued(*SIMPLE, "--array", "0-3", *TRAINING), ()),
    "array that trains": (training_array, ()),
    "array that failed": (queued(*SIMPLE, "--array", "0-1", "--", "false"), ()),
    "elastic": (queued("--gpus", "1-2", *TRAINING, step=1), ()),
    "on two nodes": (queued("--nodes", "2", "--gpus", "2", "--launch", "ddp", *TRAINING, step=1), ()),
    "serving": (serving, ("RUNNING",)),
    "left": (left_shell, ("RUNNING",)),
    "notebook": (notebook, ("RUNNING",)),
}
