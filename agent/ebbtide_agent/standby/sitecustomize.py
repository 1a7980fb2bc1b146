"""Holds a job's interpreter at the end of its start, before the first line of the script, until an order comes.

Python imports this module when it starts, because the supervisor puts this folder on its PYTHONPATH. The module imports
what the job's last attempt had imported from site-packages, and waits for an order. Then it sets up the new attempt's
environment, output and lock, and returns, so that the interpreter runs the script as always.

Without an order the process ends here. If it differs from what a new process would be, it executes the command anew,
with the same pid. This runs in the job's interpreter, so it uses the standard library only, and nothing newer than
Python 3.9.
"""

from __future__ import annotations

import _imp  # what importlib.machinery has, of a bare interpreter's modules
import os
import sys

TYPE_CHECKING = False  # typing is not imported, because only modules of a bare interpreter may be here
if TYPE_CHECKING:
    from typing import Any

_LARGEST = 1 << 20  # bytes of a message
_TAIL = b"\0PYTHONPATH="  # begins the part of the kernel's view of the environment that is not the job's


class Unfit(Exception):
    """This process differs from what a new one would be; the message says why."""


def _stand_by() -> None:
    """Import the modules, wait for the order, and carry it out. Raises any exception if no order comes."""
    bare = set(sys.modules)
    import json
    import socket

    ours, told = map(int, os.environ.pop("EBB_STANDBY").split())
    channel = socket.socket(fileno=ours)
    del os.environ["EBB_STANDBY_ROOM"], os.environ["PYTHONPATH"]
    with open(told, "rb") as file:
        recipe = json.load(file)
    os.environ.update(recipe["path"])
    home, early, files, problem = os.getcwd(), _leave_folder(recipe["sdk"]), {}, ""
    try:
        _import(recipe["modules"], early)
        _require_own(recipe["changed"])
        _require_no_gpu()
        files = _signatures()
    except BaseException as error:  # noqa: BLE001  an import may raise any, and the order must still be answered
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
    except Exception as error:  # noqa: BLE001  a new process will not have the problem, whichever it is
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
    """Remove this folder from sys.path. Return the folders before the standard library, which may have user's code.

    The SDK's folder is not among them, because it holds only the SDK, which never replaces an installed one.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path_importer_cache.pop(here, None)
    library = sys.path.index(os.path.dirname(os.path.abspath(os.__file__)))
    return [folder for folder in sys.path[:library] if not folder.endswith(".zip") and folder != sdk]


def _import(names: list[str], early: list[str]) -> None:
    """Import the modules that can be imported, and none from the user's own folders."""
    import importlib
    from contextlib import suppress

    sys.path[:] = [folder for folder in sys.path if folder not in early]
    for name in names:
        with suppress(Exception):  # the script gets the error if it imports the module
            importlib.import_module(name)
    sys.path[:0] = early


def _require_own(changed: dict[str, str]) -> None:
    """Check that these imports made the changes that the job's last attempt had made to its environment.

    Otherwise the script made them, maybe before an import that reads the variable, such as OMP_NUM_THREADS.
    """
    for name, value in changed.items():
        _require(os.environ.get(name, "") == value, f"the script sets {name}")


def _require_no_gpu() -> None:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.islink(link)]
    _require(not any(path.startswith("/dev/nvidia") for path in opened), "an import opened a GPU")


def _signatures() -> dict[str, Any]:
    """Return the imported files, each with values that change when the file does."""
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
    """Check that no module in these folders, which the script searches first, has the name of an imported one."""
    taken = {name.partition(".")[0] for name in imported}
    endings = (".py", ".pyc", *_imp.extension_suffixes())
    for folder in folders:
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            is_module = entry.name.endswith(endings) or entry.is_dir()
            named_alike = entry.name.partition(".")[0] in taken
            _require(not (is_module and named_alike), f"{entry.path} has the name of another module")


def _script_folder(command: list[str]) -> str:
    """Return the folder that sys.path will begin with."""
    words = [word for word in command[1:] if word != "-u"]
    return os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))


def _show(environment: dict[str, str]) -> None:
    """Write the job's environment where the kernel shows it, because the agent recognises the attempt by it.

    Nothing refers to the overwritten memory any more: its variables were removed from the environment or replaced.
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
    """Return whether the supervisor that gave the order has ended, so that the script would run unsupervised."""
    import select

    poll = select.poll()
    poll.register(channel, select.POLLHUP)
    return bool(poll.poll(0))


def _answer(channel: Any, problem: str) -> None:
    """Answer whether this process runs the job itself, or why not; the supervisor may have gone."""
    from contextlib import suppress

    with suppress(OSError):
        channel.send(problem.encode("utf-8", "replace") or b"\0")
    channel.close()


def _take_over(order: dict[str, Any], descriptors: list[int]) -> None:
    """Take over the job's output, with what the imports printed first, and its lock, as a new process would have it."""
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
    """Become the process that a cold start makes."""
    import signal

    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would inherit that
        signal.signal(signum, signal.SIG_DFL)
    os.execve(order["program"], order["command"], order["environment"])


def _go_on() -> None:
    """Remove this module, and import the site's own sitecustomize, if there is one."""
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  of the job's interpreter


try:
    _stand_by()
except BaseException:  # noqa: BLE001  no line of the script may run without an order
    os._exit(1)
_go_on()  # if there is none, Python's site module expects an ImportError with that name
