"""Ctrl-C while the main thread is where no exception may come from a handler, and where it does not come back from."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE_S = 60

# What runs in a library that must not be interrupted, as far as anybody can tell by its name.
PRELUDE = """
import os, sys, time
from ebbtide_cli import interrupts

def library(name, body):
    space = {"__name__": name, "time": time, "print": print}
    exec(body, space)
    return space["work"]
"""
UNHURRIED = "interrupts.ENDED_S = 60.0\n"
"""For a process that may be stopped for seconds, because much else runs."""


@contextmanager
def a_program(body: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PRELUDE + body]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


IN_LIBRARY = """
work = library("LIBRARY", '''
def work():
    state = ["half"]
    print("ready", flush=True)
    time.sleep(0.3)
    state.append("changed")
    print(*state, flush=True)
''')
try:
    with interrupts.interruptible(ends=True):
        work()
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    interrupts.leave(130)
    os._exit(130)
"""


def test_what_must_not_be_interrupted_is_not_and_the_rest_is() -> None:
    with a_program(UNHURRIED + IN_LIBRARY.replace("LIBRARY", "grpc._channel")) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "half changed\ninterrupted\n", "")


IN_AN_IMPORT = """
sys.path.insert(0, "FOLDER")
try:
    with interrupts.interruptible(ends=True):
        import slow
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    interrupts.leave(130)
    os._exit(130)
"""


def test_no_import_is_interrupted_half_way(tmp_path: Path) -> None:
    """protobuf crashed when it was interrupted as it made its classes, and numpy called it an ImportError."""
    (tmp_path / "slow.py").write_text(
        "import time\nprint('ready', flush=True)\ntime.sleep(0.3)\nprint('whole', flush=True)\n"
    )
    with a_program(UNHURRIED + IN_AN_IMPORT.replace("FOLDER", str(tmp_path))) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "whole\ninterrupted\n", "")


AS_A_POOL_STARTS = """
import concurrent.futures.process as pools, functools, signal
from ebbtide_sim.experiments.running import run_each

start = pools._ExecutorManagerThread.start

def interrupted(thread):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    start(thread)

pools._ExecutorManagerThread.start = interrupted
print("ready", flush=True)
try:
    with interrupts.interruptible(ends=True):
        list(run_each([functools.partial(time.sleep, 60)] * 4, 2))
except BaseException as ending:
    print(type(ending).__name__, flush=True)
"""


LOST_AT_THE_START = """
import os, signal, sys

class Loses:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ebbtide_cli.interrupts":
            Loses()

sys.meta_path.insert(0, Finder())
sys.argv = ["ebb", "ls"]
from ebbtide_cli.main import main
sys.exit(main())
"""


def test_an_interrupt_before_it_can_be_handled_is_not_lost(tmp_path: Path) -> None:
    """Python drops what is raised in a destructor, and where an import ends."""
    done = subprocess.run(
        [sys.executable, "-c", LOST_AT_THE_START],
        env=os.environ | {"EBB_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_pool_of_processes_that_is_interrupted_as_it_starts_ends_by_the_interrupt() -> None:
    with a_program(UNHURRIED + AS_A_POOL_STARTS) as process:
        assert ended(process) == (0, "KeyboardInterrupt\n", "")


NEVER_BACK = """
work = library("grpc._channel", '''
def work():
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
''')
with interrupts.interruptible(ends=True):
    work()
"""


@pytest.mark.parametrize("presses", [1, 2])
def test_a_library_that_never_comes_back_does_not_keep_the_process(presses: int) -> None:
    with a_program(NEVER_BACK) as process:
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "", "")


SENT_TO_ANOTHER_THREAD = """
import signal, socket, threading

stir, calls = interrupts._stir, []

def lost_at_first():
    calls.append(1)
    if len(calls) > 1:
        stir()

interrupts._stir = lost_at_first
ours, theirs = socket.socketpair()
try:
    with interrupts.interruptible(ends=True):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        print("ready", flush=True)
        ours.recv(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(interrupts.leave(130))
"""


def test_an_interrupt_that_comes_just_before_a_wait_begins_is_not_lost() -> None:
    """Neither it nor the signal that is to wake the main thread interrupts the wait, as if both had come before it."""
    with a_program(UNHURRIED + SENT_TO_ANOTHER_THREAD) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "interrupted\n", "")


NEVER_IN_PYTHON = """
import ctypes
library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(lock)
with interrupts.interruptible(ends=True):
    try:
        print("ready", flush=True)
        library.pthread_mutex_lock(lock)
    except KeyboardInterrupt:  # it came before it was there
        library.pthread_mutex_lock(lock)
"""


def test_code_in_which_python_handles_no_signal_does_not_keep_the_process() -> None:
    with a_program(NEVER_IN_PYTHON) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "", "")


LATE_AND_NEVER_IN_PYTHON = """
import ctypes
from ebbtide_cli.errors import EXPIRED, Failure
library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(lock)
with interrupts.interruptible(ends=True), interrupts.after(0.2, Failure("too late", EXPIRED)):
    print("ready", flush=True)
    library.pthread_mutex_lock(lock)
"""


def test_there_a_wait_that_lasts_too_long_ends_with_its_own_code() -> None:
    with a_program(LATE_AND_NEVER_IN_PYTHON) as process:
        assert ended(process) == (124, "", "")


HELD = """
try:
    with interrupts.interruptible(ends=True):
        with interrupts.shielded():
            print("ready", flush=True)
            time.sleep(2.5)  # longer than a process is given to end
            print("tidied up", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    os._exit(interrupts.leave(130))
"""


def test_what_would_be_left_behind_is_tidied_up_first() -> None:
    with a_program(HELD) as process:
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "tidied up\n", "")


IN_A_DESTRUCTOR = """
class Thing:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(0.3)

try:
    with interrupts.interruptible(ends=True):
        Thing()
        time.sleep(60)
except KeyboardInterrupt:
    os._exit(interrupts.leave(130))
"""


def test_an_interrupt_in_a_destructor_is_not_lost_and_says_nothing() -> None:
    with a_program(IN_A_DESTRUCTOR) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "", "")


IN_A_LOOP = """
import asyncio
from contextlib import suppress

async def forever():
    print("ready", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)  # is not cancelled once more
        print("closed", flush=True)

try:
    with interrupts.interruptible(ends=True):
        interrupts.run(forever())
except KeyboardInterrupt:
    os._exit(interrupts.leave(130))
"""


def test_an_event_loop_is_cancelled_once_and_closes_what_it_opened() -> None:
    with a_program(UNHURRIED + IN_A_LOOP) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "closed\n", "")


IGNORED = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
with interrupts.interruptible(ends=True):
    print("ready", flush=True)
    time.sleep(0.5)
print("done", flush=True)
"""


def test_who_is_told_to_ignore_it_does() -> None:
    with a_program(IGNORED) as process:
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "done\n", "")
