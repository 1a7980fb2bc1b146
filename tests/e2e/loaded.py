"""`ebb` without its start: a process that has loaded the command forks for every call.

A call has a process, arguments, an environment, a directory, streams and an exit code of its own, as one from a shell
has. What it does not do is load Python, gRPC and the verbs, which takes longer than all the rest.
"""

import atexit
import contextlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

TOO_LATE = "too late"
"""What is said instead of the exit code of a call that was ended at its deadline."""


def run(
    arguments: Sequence[str], env: Mapping[str, str], cwd: Path, seconds: float, text: str
) -> "subprocess.CompletedProcess[str]":
    """As `subprocess.run` would run ``ebb ARGUMENTS``, with ``text`` as its input.

    Like that it waits for whoever holds the output's other end. Raises subprocess.TimeoutExpired after ``seconds``.
    With a PYTHONPATH it may be another version of `ebb`, which has a start of its own.
    """
    if "PYTHONPATH" in env:
        command = [sys.executable, "-m", "ebbtide_cli.main", *arguments]
        return subprocess.run(command, env=env, cwd=cwd, timeout=seconds, input=text, capture_output=True, text=True)
    order = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd), "seconds": seconds}
    with tempfile.TemporaryFile("w+") as given, ThreadPoolExecutor(2) as readers:
        given.write(text)
        given.seek(0)
        (out, its_out), (err, its_err), (call, its_call) = os.pipe(), os.pipe(), socket.socketpair()
        try:
            _server().send(given.fileno(), its_out, its_err, its_call.fileno())
        finally:
            os.close(its_out)
            os.close(its_err)
            its_call.close()
        printed = [readers.submit(_all_of, os.fdopen(end, encoding="utf-8")) for end in (out, err)]
        with call, call.makefile("rw") as words:
            json.dump(order, words)
            words.write("\n")
            words.flush()
            answer = words.readline()
        assert answer, "the process that forks for each call of ebb has ended"
        texts = [reader.result() for reader in printed]
    if (code := json.loads(answer)) == TOO_LATE:
        raise subprocess.TimeoutExpired(["ebb", *arguments], seconds, *texts)
    return subprocess.CompletedProcess(["ebb", *arguments], code, *texts)


def _all_of(file: IO[str]) -> str:
    with file:
        return file.read()


class _Server:
    """The process that has loaded `ebb`; it ends with the process that it serves."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        atexit.register(self._end)

    def send(self, *files: int) -> None:
        """Have it serve a call, with its three streams and the socket on which it is said."""
        socket.send_fds(self._socket, [b"!"], list(files))

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


_server = cache(_Server)


def _serve(calls: socket.socket) -> None:
    """Load everything, then fork for each call; returns when nobody can call any more."""
    for module in pkgutil.iter_modules(import_module("ebbtide_cli.verbs").__path__):
        import_module(f"ebbtide_cli.verbs.{module.name}")
    for name in ("masters.connection", "main", "watching"):
        import_module(f"ebbtide_cli.{name}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a Ctrl-C those hear who are served
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while received := socket.recv_fds(calls, 1, 4)[1]:
        if os.fork() == 0:
            calls.close()
            _keep(*received)
        for file in received:
            os.close(file)


def _keep(given: int, out: int, err: int, call: int) -> NoReturn:
    """Wait for one call, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=call) as said, said.makefile("rw") as words:
        order = json.loads(words.readline())
        if (pid := os.fork()) == 0:
            for number, file in enumerate((given, out, err)):
                os.dup2(file, number)
                os.close(file)
            words.close()
            said.close()
            _perform(order)
        for file in (given, out, err):
            os.close(file)
        in_time = select.select([os.pidfd_open(pid)], [], [], order["seconds"])[0]
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the tests have ended meanwhile
            json.dump(code if in_time else TOO_LATE, words)
            words.flush()
    os._exit(0)


def _perform(order: dict[str, object]) -> NoReturn:
    """Be the command; the process ends with it."""
    from ebbtide_cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(str(order["cwd"]))
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    sys.argv[1:] = order["arguments"]  # type: ignore[call-overload]
    sys.exit(main())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
