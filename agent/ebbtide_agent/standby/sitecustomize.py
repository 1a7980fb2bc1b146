"""Holds a job's own command line at the end of the interpreter's start, before the first line of its script.

Python imports this when it starts, because the supervisor put this folder on its PYTHONPATH. It imports what the job's
last attempt had imported from site-packages, and waits for an order. Then it puts everything into place that is an
attempt's own (environment, output, lock) and returns: the interpreter goes on and runs the script as it always does.

Nothing falls through: without an order the process ends here, and if it is not what a new one would be, it executes
the command anew, as the same process. Standard library only, and nothing newer than Python 3.9: this runs in the job's
interpreter, not in the agent's.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is not imported: nothing is, here, that a bare interpreter has not
if TYPE_CHECKING:
    from typing import Any

_LARGEST = 1 << 20  # bytes of a message
_TAIL = b"\0PYTHONPATH="  # where, in the environment that the kernel shows, that begins which is not the job's


class Unfit(Exception):
    """This process is not what a new one would be; the message says why."""


def _stand_by() -> None:
    """Import, wait for the order, carry it out. Raises what it likes before the order, and if that never comes."""
    bare = set(sys.modules)
    import json
    import socket

    channel = socket.socket(fileno=int(os.environ.pop("EBB_STANDBY")))
    del os.environ["EBB_STANDBY_ROOM"], os.environ["PYTHONPATH"]
    recipe = json.loads(channel.recv(_LARGEST))
    os.environ.update(recipe["path"])
    home, early, files, problem = os.getcwd(), _leave_folder(recipe["sdk"]), {}, ""
    try:
        _import(recipe["modules"], early)
        _require_own(recipe["changed"])
        _require_no_gpu()
        files = _signatures()
    except BaseException as error:  # noqa: BLE001  an import may end like that, too, and the order is under way
        problem = str(error) or repr(error)
    line, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, 2)
    if len(descriptors) != 2 or _is_closed(channel):
        raise Unfit("there was no order")
    order = json.loads(line)
    try:
        _require(not problem, problem)
        os.chdir(order["workdir"])
        _require(os.getcwd() == home, "the working directory is another one by now")
        _require_same(files)
        _require_no_shadow(set(sys.modules) - bare, [*early, _script_folder(order["command"])])
        _show(order["environment"])
    except Exception as error:  # noqa: BLE001  whatever it is, a new process does not have it
        _answer(channel, str(error))
        _take_over(order, descriptors)
        _execute(order)
    _answer(channel, "")
    _take_over(order, descriptors)
    os.environ.update(order["environment"])


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise Unfit(problem)


def _leave_folder(sdk: str) -> list[str]:
    """Take this folder off sys.path; returns those before the standard library, where code of the user's may lie.

    Where the SDK is offered nothing else lies, and it is never taken in place of one that is installed.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path_importer_cache.pop(here, None)
    library = sys.path.index(os.path.dirname(os.path.abspath(os.__file__)))
    return [folder for folder in sys.path[:library] if not folder.endswith(".zip") and folder != sdk]


def _import(names: list[str], early: list[str]) -> None:
    """Import what can be imported, and nothing that lies in the user's own folders."""
    import importlib
    from contextlib import suppress

    sys.path[:] = [folder for folder in sys.path if folder not in early]
    for name in names:
        with suppress(Exception):  # then the script meets the error, or does without
            importlib.import_module(name)
    sys.path[:0] = early


def _require_own(changed: dict[str, str]) -> None:
    """What the job's last attempt had changed in its environment must come from these imports.

    Else its script had, maybe before an import that reads it, as OMP_NUM_THREADS is read.
    """
    for name, value in changed.items():
        _require(os.environ.get(name, "") == value, f"the script sets {name}")


def _require_no_gpu() -> None:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.islink(link)]
    _require(not any(path.startswith("/dev/nvidia") for path in opened), "an import opened a GPU")


def _signatures() -> dict[str, Any]:
    """Every file that was imported, and what changes with it."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {path: _signature(path) for path in found if isinstance(path, str)}


def _signature(path: str) -> Any:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_ctime_ns


def _require_same(files: dict[str, Any]) -> None:
    for path, signature in files.items():
        _require(_signature(path) == signature, f"{path} has changed")


def _require_no_shadow(imported: Any, folders: list[str]) -> None:
    """Nothing in these folders, which come first when the script runs, has the name of what is imported already."""
    taken = {name.partition(".")[0] for name in imported}
    for folder in folders:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            _require(name.partition(".")[0] not in taken, f"{folder}/{name} has the name of another module")


def _script_folder(command: list[str]) -> str:
    """What sys.path will begin with."""
    words = [word for word in command[1:] if word != "-u"]
    return os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))


def _show(environment: dict[str, str]) -> None:
    """Have the kernel show the job's environment to others: by it they know whose process this is.

    Nothing points to what is overwritten any more, for all of it was taken out of the environment, or replaced there.
    """
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        begin, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    memory = os.open("/proc/self/mem", os.O_RDWR)
    try:
        block = os.pread(memory, end - begin, begin)
        kept = block[: block.rindex(_TAIL) + 1]
        same = set(kept.split(b"\0"))
        entries = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        tail = b"".join(entry + b"\0" for entry in entries if entry not in same)
        _require(len(kept) + len(tail) <= len(block), "the environment is too large")
        os.pwrite(memory, tail.ljust(len(block) - len(kept), b"\0"), begin + len(kept))
    finally:
        os.close(memory)


def _is_closed(channel: Any) -> bool:
    """Whether whoever gave the order has ended: then nobody would supervise what runs here."""
    import select

    poll = select.poll()
    poll.register(channel, select.POLLHUP)
    return bool(poll.poll(0))


def _answer(channel: Any, problem: str) -> None:
    """Tell whether this process takes the job as it is, or why not; nobody needs to listen."""
    from contextlib import suppress

    with suppress(OSError):
        channel.send(problem.encode("utf-8", "replace") or b"\0")
    channel.close()


def _take_over(order: dict[str, Any], descriptors: list[int]) -> None:
    """Write where the job writes, what the imports had to say before, and hold its lock as a new process would."""
    output, held = descriptors
    said = os.pread(1, _LARGEST, 0)
    if said:
        os.write(output, said)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    wanted = order["lock"]
    if held != wanted and not os.path.exists(f"/proc/self/fd/{wanted}"):
        os.dup2(held, wanted)
        os.close(held)
        held = wanted
    os.set_inheritable(held, True)


def _execute(order: dict[str, Any]) -> None:
    """Be the process that a cold start makes."""
    import signal

    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so
        signal.signal(signum, signal.SIG_DFL)
    os.execve(order["program"], order["command"], order["environment"])


def _go_on() -> None:
    """Be as if this module had never been: the site's own takes its name, if there is one."""
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  of the job's interpreter


try:
    _stand_by()
except BaseException:  # noqa: BLE001  whatever it is, no line of the script may run without an order
    os._exit(1)
_go_on()  # an ImportError of that name is what site expects where there is none
