"""Run one attempt from its order to its recorded end, in a process of its own."""

import contextlib
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide_machine.process import Identity

from ebbtide_agent.contract.attempt_dir import AttemptDir, lock_path
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.helper import forking
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.jsonfile import DISK_FULL
from ebbtide_agent.processes import cgroup, linux, process_tree, procfs
from ebbtide_agent.processes.cgroup import ControlGroup
from ebbtide_agent.supervisor import lease, limits, lock
from ebbtide_agent.supervisor.conclusion import conclude
from ebbtide_agent.supervisor.launching import fake_gpus, standby
from ebbtide_agent.supervisor.launching.launch import Rank, start
from ebbtide_agent.supervisor.launching.launch_wait import LaunchWait
from ebbtide_agent.supervisor.launching.preparation import Prepared, prepare
from ebbtide_agent.supervisor.launching.program import Program
from ebbtide_agent.supervisor.launching.recipe import Recipe
from ebbtide_agent.supervisor.launching.standby import Standby
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.session_processes import SessionEntry
from ebbtide_agent.supervisor.sockets import claim
from ebbtide_agent.supervisor.status import Phase, Refused, Status, refusing
from ebbtide_agent.supervisor.streams.output import Output, open_files
from ebbtide_agent.supervisor.streams.standard_input import InputPipe
from ebbtide_agent.supervisor.watch import Watch

# Seconds between tries to write to a full disk.
_DISK_FULL_S = 1.0
# Seconds between looks whether killed processes are gone.
_LOOK_S = 0.005


def supervise(channel: socket.socket) -> None:
    """Carry out the order that is the channel's first line, and serve the channel as a control connection.

    A request to hold processes ready for the order may come before it, by any time.
    """
    line, received = _read_line(channel)
    if not line:
        return  # the agent ended before it sent an order
    content = json.loads(line)
    standbys: list[Standby] = []
    if content.get("do") == standby.ORDER:
        linux.set_process_name("ebb:standby")
        standbys = standby.stand_by(content)
        line, received = _read_line(channel, received)
        if not line:
            _dismiss(standbys)
            return  # the agent ended, or needs the standbys no more
        content = json.loads(line)
    intent = Intent.from_json(content)
    place = AttemptDir.of(Path(intent.node_dir), intent.job_id, intent.attempt)
    linux.set_process_name(f"ebb:{intent.job_id}.{intent.attempt}")
    linux.adopt_orphans()
    if intent.account is not None:
        os.umask(0o077)
    try:
        _supervise(channel, received, content, intent, place, standbys)
    except Exception:  # a fault of this program: it is written down here, because nothing else could report it
        # The agent finds this process gone, kills what it left, and reports that the exit status is lost.
        (place.path / "supervisor.log").write_text(traceback.format_exc())
        raise


def _supervise(
    channel: socket.socket,
    received: bytes,
    content: dict[str, Any],
    intent: Intent,
    place: AttemptDir,
    standbys: list[Standby],
) -> None:
    status = Status(intent.job_id, intent.attempt, supervisor=Identity.own())
    worker = Worker(intent.account)
    try:
        with contextlib.suppress(OSError):  # a failure is reported when the worker is needed and started again
            worker.start()  # it gets ready while the attempt's directory is made, and never has the job's lock
        with refusing("cannot set up the attempt's directory"):
            sockets = claim(place, content, intent, status.supervisor)
        if sockets is None:
            return  # the attempt has, or had, a supervisor already; the agent finds what that one left
        fence = lock_path(Path(intent.node_dir), intent.job_id)
        with lock.hold(fence, intent.attempt) as held, _cgroup(intent, place) as group:
            waiting = LaunchWait(channel, received, sockets.control, intent.failover_after_s, intent.leased_at, worker)
            prepared = prepare(intent, place, waiting.ask)
            if lease.is_over_before_it_begins(intent.failover_after_s, intent.grace_s, waiting.leased_at()):
                raise Refused("its lease was over before it could start")
            enforced = limits.enforce(intent, group)
            started_at = time.time()
            with refusing("cannot start the attempt"):
                output = Output(intent, place)
                pipe = InputPipe(intent.account) if intent.stdin else None
            ranks = _start(intent, place, prepared, held, fence, group, standbys, sockets.session, pipe, waiting.until)
            _note_start(status, prepared, ranks, started_at)
            reports = Reports(sockets.job, intent.first_rank, partial(fake_gpus.allocate, intent))
            environment = prepared.environments[0]
            entry = SessionEntry(sockets.session_processes, environment, intent.workdir, held, group, intent.account)
            status.leased = intent.failover_after_s is not None
            watch = Watch(
                intent, prepared.signal, ranks, reports, status, sockets, entry, output, worker, enforced, pipe
            )
            watch.run(waiting.received())
            output.finish(watch.patience_s())
            status.log_matches = list(output.matches)
            watch.exit.memory_failure = watch.exit.memory_failure or limits.kernel_failure(intent, group)
            conclude(intent, watch, reports, status, place)
            _record(place, status)
    except Refused as refusal:
        _refuse(channel, place, status, refusal)
    else:
        # Published only when the lock is free, because the agent may start the next attempt at once.
        watch.control.publish(status.to_json())
        watch.control.close()
    finally:
        worker.end()
        _dismiss(standbys)


def _dismiss(standbys: list[Standby]) -> None:
    while standbys:
        standbys.pop().end()


def _read_line(channel: socket.socket, received: bytes = b"") -> tuple[bytes, bytes]:
    """Return the first line, which may begin in `received`, and the rest; both are empty if the channel ends first."""
    while b"\n" not in received:
        data = channel.recv(64 * 1024)
        if not data:
            return b"", b""
        received += data
    line, _, rest = received.partition(b"\n")
    return line, rest


@contextmanager
def _cgroup(intent: Intent, place: AttemptDir) -> Iterator[ControlGroup | None]:
    """Provide a control group for the attempt if there can be one, and remove it in the end."""
    parent = cgroup.delegated()
    group = None if parent is None else ControlGroup.create(parent, cgroup.group_name(intent.node_dir, place.path.name))
    if group is None:
        yield None
        return
    with refusing("cannot set up the attempt's directory"):
        place.record_cgroup(group.path)
    try:
        yield group
    finally:
        group.remove()


def _start(
    intent: Intent,
    place: AttemptDir,
    prepared: Prepared,
    held: int,
    fence: Path,
    group: ControlGroup | None,
    standbys: list[Standby],
    session: socket.socket | None,
    pipe: InputPipe | None,
    wait: Callable[[Program], None],
) -> list[Rank]:
    """Start all processes, or none; standbys are used first. Raises Refused."""
    ranks: list[Rank] = []
    if standbys and (standbys[0].recipe != Recipe.of(intent) or not prepared.has_workdir):
        _dismiss(standbys)
    try:
        with refusing("cannot start the attempt"):
            outputs = open_files(intent, place)
            for local_rank, environment in enumerate(prepared.environments):
                ready = standbys.pop() if standbys else None
                output = outputs[min(local_rank, len(outputs) - 1)]
                inherited = () if session is None else (session.fileno(),)
                rank = start(
                    local_rank,
                    prepared.command,
                    intent.workdir,
                    environment if session is None else {**environment, "EBB_SESSION": str(session.fileno())},
                    output,
                    held,
                    wait,
                    group,
                    ready,
                    intent.account,
                    inherited,
                    None if pipe is None else pipe.reader,
                )
                ranks.append(rank)
                fake_gpus.register(intent, intent.gpus_of(local_rank), rank.identity)
            for output in outputs:
                os.close(output)
            if session is not None:
                session.close()
            if pipe is not None:
                pipe.handed_over()
            _dismiss(standbys)  # before anything counts or signals the processes below this one
            lock.make_durable(held, fence)
    except Refused:
        _end_all(ranks)
        raise
    return ranks


def _end_all(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.identity.signal(signal.SIGKILL)
        rank.ended(-signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            process_tree.kill_below(os.getpid(), forking.unreaped())
            pid, _ = os.waitpid(-1, os.WNOHANG)
            forking.note_reaped(pid)
            if not pid and not set(procfs.children(os.getpid())) - forking.unreaped():
                return
            time.sleep(0.0 if pid else _LOOK_S)


def _note_start(status: Status, prepared: Prepared, ranks: list[Rank], started_at: float) -> None:
    status.phase = Phase.RUNNING
    status.pid = ranks[0].identity.pid
    status.started_at = started_at
    status.resumed_step = prepared.resumed_step
    status.master_port = prepared.port
    status.edited = prepared.edited


def _record(place: AttemptDir, status: Status) -> None:
    """Record the attempt's end, which is reported only when it is on disk: on a full disk this waits for room."""
    while True:
        try:
            place.record_final_status(status.to_json())
        except FileNotFoundError:
            return  # the directory was removed; a connected agent is told all the same
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            time.sleep(_DISK_FULL_S)
        else:
            return


def _refuse(channel: socket.socket, place: AttemptDir, status: Status, refusal: Refused) -> None:
    status.refuse(refusal)
    # If the disk takes no record, the refusal holds as long as the agent runs; nothing was started anyway.
    with contextlib.suppress(OSError):
        place.record_final_status(status.to_json())
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(status.to_json()).encode() + b"\n")
