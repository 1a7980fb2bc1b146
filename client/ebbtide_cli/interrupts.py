"""Handle Ctrl-C in one place: cancel what this process waits for, and end the process, whatever a library does.

An exception that a signal handler raises inside gRPC, an event loop or a destructor is lost, or leaves a channel that
waits forever when it is closed. So the handler raises nothing there: a thread cancels the running calls, and wakes the
main thread with a signal until it runs code in which raising is safe. One signal is not enough even for Python to
notice the Ctrl-C, since a wait that begins just then is interrupted by none that came before. A handler prints nothing.
A process that has not ended soon after is killed, as it is by a second Ctrl-C, except while it is `shielded` because it
would leave something behind.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NoReturn, Protocol, TypeVar

from ebbtide_cli.errors import INTERRUPTED, Failure

Value = TypeVar("Value")

STIR: Final = signal.SIGURG
"""The signal that wakes the main thread; nothing else uses it, and its default is to be ignored."""
STIRRED_S: Final = 0.02
"""Seconds between two such signals."""
ENDED_S: Final = 1.5
"""Seconds in which the process may leave by itself; it has nothing to wait for."""
_FRAGILE: Final = frozenset(
    {
        "grpc",
        "asyncio",
        "concurrent.futures.process",
        "multiprocessing.popen_spawn_posix",
        "importlib",
        "_frozen_importlib",  # as long as nothing has imported importlib
        "_frozen_importlib_external",
    }
)
"""Packages and modules that an asynchronous exception breaks or crashes, or whose child process prints it.

A pool of processes that is interrupted between two steps of its start raises another exception when it is shut down.
A module that is interrupted while it is imported may be broken: protobuf's classes of messages crashed, and numpy's C
code made an ImportError of the interrupt.
"""
_WRAPPING: Final = frozenset({"__del__", "__set_name__"})
"""Functions out of which an exception does not come as itself."""


class Cancellable(Protocol):
    """A call or task that the main thread waits for."""

    def cancel(self) -> object:
        """Make it end soon; called on another thread."""


class _Handling:
    """The interrupts of one verb, and what is to be done about them."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.due: BaseException | None = None  # the exception to raise in the main thread
        self.raised = False
        self.shields = 0
        self.handled = 0  # how often the main thread has run a handler
        self.over = False
        self.waits: set[Cancellable] = set()
        self.taker: Callable[[int], None] | None = None
        self.taken = 0  # how many more interrupts the taker gets
        self._tell_of_lost = sys.unraisablehook
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals for the duration of the block; a Ctrl-C that was ignored before stays ignored."""
        numbers = [STIR] if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else [STIR, signal.SIGINT]
        before = {number: signal.signal(number, self.handle) for number in numbers}
        # The kernel wakes the thread at once; Python runs its handler too late for a wait that has just begun.
        waker = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        sys.unraisablehook = self._lost
        threading.Thread(target=self._insist, name="interrupts", daemon=True).start()
        try:
            yield
        finally:
            self.over, self.due, sys.unraisablehook = True, None, self._tell_of_lost
            if self.ends and signal.SIGINT in before:
                before[signal.SIGINT] = signal.SIG_IGN  # what is left to do takes no time
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(waker)
            os.close(self._writing)

    def raise_soon(self, due: BaseException) -> None:
        """Raise ``due`` in the main thread as soon as it runs code in which raising is safe."""
        self.due, self.raised = due, False
        with suppress(OSError):  # the block has ended meanwhile
            os.write(self._writing, bytes((signal.SIGINT,)))

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; Python calls this between two instructions of the main thread."""
        self.handled += 1
        if number == signal.SIGINT:
            self._press()
        if self.due is not None and not self.raised and not self.shields and not _is_fragile(frame):
            self.raised = True
            raise self.due

    def _lost(self, what: "sys.UnraisableHookArgs") -> None:
        """Note that the exception was raised where exceptions are lost, so that it is raised once more elsewhere."""
        if what.exc_value is not None and what.exc_value is self.due:
            self.raised = False
        else:
            self._tell_of_lost(what)

    def _press(self) -> None:
        if self.taken and self.taker is not None:
            self.taken -= 1
            threading.Thread(target=self.taker, args=(self.taken,), daemon=True).start()
        elif not isinstance(self.due, KeyboardInterrupt):
            self.raise_soon(KeyboardInterrupt())
        elif self.ends and not self.shields:
            _end(INTERRUPTED)

    def _insist(self) -> None:
        """Wait for a signal from the wakeup descriptor, and from then on see to it that the exception takes effect."""
        with open(self._reading, "rb", buffering=0) as wakeups:
            while numbers := wakeups.read(64):
                if signal.SIGINT not in numbers:
                    continue
                since = time.monotonic()
                self._have_it_handled(since)
                while (due := self.due) is not None:
                    if self.shields:
                        since = time.monotonic()
                    else:
                        self._bring_about(due, since)
                    time.sleep(STIRRED_S)

    def _have_it_handled(self, since: float) -> None:
        """Wake the main thread until an exception is due or it has run a handler, and so those of all that came."""
        before = self.handled
        while self.due is None and self.handled == before and not self.over:
            _stir()
            if self.ends and not (self.shields or self.taken) and time.monotonic() > since + ENDED_S:
                _end(INTERRUPTED)
            time.sleep(STIRRED_S)

    def _bring_about(self, due: BaseException, since: float) -> None:
        while self.waits:
            with suppress(KeyError):  # the call ended meanwhile
                self.waits.pop().cancel()
        if self.raised:
            threading.excepthook = lambda _: None  # a thread that waits for the children must not complain
            _kill_children()
        else:
            _stir()
        if self.ends and time.monotonic() > since + ENDED_S:
            _end(due.code if isinstance(due, Failure) else INTERRUPTED)


_handling: _Handling | None = None
_terminals: dict[int, list[Any]] = {}
_kept: list[object] = []
_waits_for_no_thread = False


@contextmanager
def interruptible(*, ends: bool) -> Iterator[None]:
    """Handle Ctrl-C while a verb runs; ``ends``: a Ctrl-C may end the process."""
    global _handling
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _handling = _handling, _Handling(ends=ends)
    try:
        with _handling.listening():
            yield
    finally:
        _handling = before


def is_pending() -> bool:
    """Whether this is the main thread, and is to end what it does."""
    return (handling := _mine()) is not None and handling.due is not None and not handling.shields


def pending() -> BaseException:
    """Return the exception that is due, for the first caller that notices it to raise."""
    handling = _mine()
    if handling is None or handling.due is None:
        return KeyboardInterrupt()
    handling.raised = True
    return handling.due


def discard_pending() -> None:
    """Cancel the exception that is due: the caller was waiting for this interrupt, and goes on."""
    if handling := _mine():
        handling.due = None


@contextmanager
def waiting_for(call: Cancellable) -> Iterator[None]:
    """Cancel ``call``, for which the main thread waits in this block, if an interrupt ends the wait."""
    handling = _mine()
    if handling is None:
        yield
        return
    handling.waits.add(call)
    if is_pending():
        call.cancel()
    try:
        yield
    finally:
        handling.waits.discard(call)


@contextmanager
def shielded() -> Iterator[None]:
    """Let nothing interrupt the block; an interrupt in the meantime takes effect afterwards."""
    handling = _mine()
    if handling is None:
        yield
        return
    handling.shields += 1
    try:
        yield
    finally:
        handling.shields -= 1
        if not handling.shields and handling.due is not None and not handling.raised:
            raise pending()


@contextmanager
def handled_by(taker: Callable[[int], None], times: int) -> Iterator[None]:
    """Call ``taker`` on a thread for the next Ctrl-Cs, with how many more it will get; later ones interrupt."""
    handling = _mine()
    if handling is None:
        yield
        return
    handling.taker, handling.taken = taker, times
    try:
        yield
    finally:
        handling.taker, handling.taken = None, 0


@contextmanager
def after(seconds: float, failure: Failure) -> Iterator[None]:
    """Raise ``failure`` in the block once the block has lasted ``seconds``."""
    if (handling := _mine()) is None:
        yield
        return
    timer = threading.Timer(seconds, handling.raise_soon, (failure,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def sigterm_too() -> Iterator[None]:
    """Treat SIGTERM in the block as a Ctrl-C, because the block would leave something behind otherwise."""
    if (handling := _mine()) is None:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: handling.handle(signal.SIGINT, frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_signals() -> Iterator[int]:
    """Turn SIGINT and SIGTERM into a descriptor that can be read.

    An exception from a signal handler can be lost in a destructor; a byte in a socket cannot.
    """
    import socket

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        before = signal.set_wakeup_fd(writer.fileno())
        handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield reader.fileno()
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def unhandled() -> Iterator[None]:
    """Leave SIGINT to what runs in the block."""
    if _mine() is None or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    handler, waker = signal.signal(signal.SIGINT, signal.default_int_handler), signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGINT, handler)


def run(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine in an event loop of its own; Ctrl-C cancels it."""
    import asyncio

    class Running:
        def __init__(self, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any] | None") -> None:
            self._loop, self._task = loop, task

        def cancel(self) -> None:
            if self._task is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._task.cancel)

    async def cancellable() -> Value:
        with waiting_for(Running(asyncio.get_running_loop(), asyncio.current_task())):
            return await coroutine

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise pending() from None


@contextmanager
def kept_terminal(descriptor: int) -> Iterator[None]:
    """Restore the terminal's current settings afterwards, even if the process is killed by `_end`."""
    import termios

    before = termios.tcgetattr(descriptor)
    _terminals[descriptor] = before
    try:
        yield
    finally:
        _terminals.pop(descriptor, None)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def never_wait_for_threads() -> None:
    """Let this process end without waiting for threads of a library that may not end."""
    global _waits_for_no_thread
    _waits_for_no_thread = True


def keep_until_exit(channel: object) -> None:
    """Keep an object until this process ends, because its destructor may wait."""
    _kept.append(channel)


def leave(code: int) -> int:
    """End the process with this exit code if threads could keep it from ending; else return the code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if _waits_for_no_thread:
        _end(code)
    return code


def _mine() -> _Handling | None:
    return _handling if threading.current_thread() is threading.main_thread() else None


def _is_fragile(frame: FrameType | None) -> bool:
    """Whether an exception raised in this frame would be lost, or do harm."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if {module, module.partition(".")[0]} & _FRAGILE or frame.f_code.co_name in _WRAPPING:
            return True
        frame = frame.f_back
    return False


def _stir() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, STIR)


def _kill_children() -> None:
    """Kill the children of process pools, which would wait for more work forever."""
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():
            child.kill()


def _end(code: int) -> NoReturn:
    """End the process at once, whatever locks other threads hold; flush nothing that could block."""
    _kill_children()
    for descriptor, settings in _terminals.items():
        import termios

        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, settings)
    os._exit(code)
