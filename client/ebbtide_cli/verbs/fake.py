"""``ebb fake``: break the fake GPUs of a node of this machine, to see what happens."""

import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ebbtide_cli.commands.verb import DURATION, SIZE, Verbs, examples, json_option
from ebbtide_cli.errors import INTERRUPTED, OK, USAGE, Failure
from ebbtide_cli.home import Home, read_record
from ebbtide_cli.interrupts import stop_signals
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.values import format_duration, format_size

if TYPE_CHECKING:
    from ebbtide_agent.gpu.fake_state import Device
    from ebbtide_agent.gpu.faults import FaultFile

T = TypeVar("T")

EVERY: Final = "all"
MEMORY: Final = "nvmlDeviceGetMemoryInfo"

node_option: Final = click.option(
    "--node", metavar="NAME", default="", help="Node to change, if several have fake GPUs."
)
gpu_argument: Final = click.argument("gpu", metavar="GPU")


@click.group(
    cls=Verbs,
    epilog=examples(
        "ebb fake status",
        "ebb fake lose 0",
        "ebb fake xid 1 79",
        "ebb fake foreign 0 10GiB --for 60s",
        "ebb fake heal",
    ),
)
def command() -> None:
    """Break the fake GPUs of a node on this machine, as real ones break, and heal them.

    A GPU is named by its number or its UUID. Every fault takes effect at once, while jobs run, and lasts until it is
    undone.
    """


@command.command(epilog=examples("ebb fake lose 0"))
@gpu_argument
@node_option
def lose(gpu: str, node: str) -> None:
    """Make a GPU fall off the bus."""
    faults = _faults(node)
    uuid = _uuid(faults, gpu)
    _tell(lambda: faults.lose(uuid), f"{uuid} is lost: 'ebb fake return {gpu}' brings it back")


@command.command("return", epilog=examples("ebb fake return 0"))
@gpu_argument
@node_option
def bring_back(gpu: str, node: str) -> None:
    """Bring a lost GPU back, without its faults."""
    faults = _faults(node)
    uuid = _uuid(faults, gpu)
    _tell(lambda: faults.restore(uuid), f"{uuid} is back")


@command.command(epilog=examples("ebb fake xid 0 79", "ebb fake xid 0 31"))
@gpu_argument
@click.argument("number", metavar="N", type=click.IntRange(1, 1000))
@node_option
def xid(gpu: str, number: int, node: str) -> None:
    """Make the driver report an error of a GPU: 79 is a fault of the GPU, 31 one of an application."""
    from ebbtide_agent.gpu.xids import words

    faults = _faults(node)
    uuid = _uuid(faults, gpu)
    _tell(lambda: faults.xid(uuid, number), f"{uuid}: {words(number)}")


@command.command("no-memory", epilog=examples("ebb fake no-memory 0", "ebb fake no-memory 0 --off"))
@gpu_argument
@click.option("--off", is_flag=True, help="Make it available again.")
@node_option
def no_memory(gpu: str, off: bool, node: str) -> None:
    """Hide how much memory each process uses on a GPU, as in some containers."""
    faults = _faults(node)
    uuid = _uuid(faults, gpu)
    what = "is available again" if off else "is not available"
    _tell(lambda: faults.hide_memory(uuid, not off), f"{uuid}: what processes hold {what}")


@command.command(epilog=examples("ebb fake hang", "ebb fake hang nvmlDeviceGetUtilizationRates"))
@click.argument("call", metavar="[CALL]", default=MEMORY)
@node_option
def hang(call: str, node: str) -> None:
    """Make a function of NVML never return; by default the one that reads memory."""
    faults = _faults(node)
    name = _call(call)
    _tell(lambda: faults.hang(name), f"{name} hangs: 'ebb fake heal' ends it")


@command.command("late-release", epilog=examples("ebb fake late-release 0 5s", "ebb fake late-release 0 0s"))
@gpu_argument
@click.argument("delay", metavar="DURATION", type=DURATION)
@node_option
def late_release(gpu: str, delay: float, node: str) -> None:
    """Keep a GPU's memory for this long after a process ended; 0s: no longer."""
    faults = _faults(node)
    uuid = _uuid(faults, gpu)
    _tell(lambda: faults.release_late(uuid, delay), f"{uuid} gives memory back after {format_duration(delay)}")


@command.command(epilog=examples("ebb fake error 0 nvmlDeviceGetMemoryInfo 999", "ebb fake error all nvmlInit 9"))
@gpu_argument
@click.argument("call", metavar="CALL")
@click.argument("code", metavar="CODE", type=click.IntRange(0, 999))
@node_option
def error(gpu: str, call: str, code: int, node: str) -> None:
    """Make a function of NVML return an error code for a GPU, or for "all"; 0 makes it work again."""
    faults = _faults(node)
    uuid = "*" if gpu == EVERY else _uuid(faults, gpu)
    answers = f"answers {code}" if code else "works"
    _tell(lambda: faults.fail(uuid, _call(call), code), f"{call} {answers} for {gpu if gpu == EVERY else uuid}")


@command.command(epilog=examples("ebb fake permute"))
@node_option
def permute(node: str) -> None:
    """Reverse the driver's numbers of the GPUs at its next start, as a reboot can."""
    faults = _faults(node)
    _tell(faults.permute, "The driver will number its GPUs the other way round: restart the node's agent")


@command.command(epilog=examples("ebb fake heal"))
@node_option
def heal(node: str) -> None:
    """Undo all faults."""
    _tell(_faults(node).heal, "Nothing goes wrong any more")


@command.command(epilog=examples("ebb fake foreign 0 10GiB", "ebb fake foreign 1 512MiB --for 60s"))
@gpu_argument
@click.argument("size", metavar="SIZE", type=SIZE)
@click.option(
    "--for", "seconds", metavar="DURATION", type=DURATION, help="End the process after this time (default: at Ctrl-C)."
)
@node_option
def foreign(gpu: str, size: int, seconds: float | None, node: str) -> int:
    """Act as a process from outside the cluster: hold memory on a GPU until Ctrl-C or for a time."""
    from ebbtide_agent.gpu import fake_state
    from ebbtide_agent.gpu.fake import FakeNvml
    from ebbtide_agent.processes.procfs import read_stat

    state_dir = _state_dir(node)
    uuid = _uuid(_faults(node), gpu)
    free, _ = _attempt(lambda: FakeNvml(state_dir).room(uuid))
    if size > free:
        raise Failure(f"SIZE: GPU {gpu} has {format_size(free)} free, not {format_size(size)}")
    stat = read_stat(os.getpid())
    assert stat is not None
    with stop_signals() as stop:
        _attempt(lambda: fake_state.register(state_dir, stat.pid, stat.starttime, {uuid: size}))
        try:
            print(f"pid {stat.pid} holds {format_size(size)} of {uuid}", flush=True)
            interrupted = bool(select.select([stop], [], [], seconds)[0])
        finally:
            fake_state.unregister(state_dir, stat.pid)
    return INTERRUPTED if interrupted and seconds is not None else OK


@command.command(epilog=examples("ebb fake status", "ebb fake status --json"))
@node_option
@json_option
def status(node: str, as_json: bool) -> None:
    """Show a node's fake GPUs and their faults."""
    faults = _faults(node)
    in_force = _attempt(faults.read)
    devices = _attempt(faults.devices)
    troubles = [_fault_words(in_force, device) for device in devices]
    hanging = in_force.get("hang", [])
    if as_json:
        listed = [
            {"index": index, "uuid": device.uuid, "model": device.model, "faults": trouble}
            for index, (device, trouble) in enumerate(zip(devices, troubles, strict=True))
        ]
        print_json({"node": _state_dir(node).parent.name, "gpus": listed, "hang": hanging, "faults": in_force})
        return
    from ebbtide_cli.terminal.drawing import print_table

    rows = (
        (str(index), device.model, device.uuid, "; ".join(trouble) or "-")
        for index, (device, trouble) in enumerate(zip(devices, troubles, strict=True))
    )
    print_table(("GPU", "MODEL", "UUID", "GOES WRONG"), rows)
    for call in hanging:
        print(f"{call} hangs")


def _fault_words(faults: dict[str, Any], device: "Device") -> list[str]:
    """Describe what is wrong with one GPU."""
    from ebbtide_agent.gpu.xids import words

    names = {device.uuid, device.parent}
    late = [seconds for uuid, seconds in faults.get("release_after_s", {}).items() if uuid in names]
    errors = {**faults.get("errors", {}).get("*", {}), **faults.get("errors", {}).get(device.uuid, {})}
    return [
        *(["lost"] if names & set(faults.get("lost", ())) else []),
        *(words(hit["xid"]) for hit in faults.get("xids", ()) if hit["uuid"] in names),
        *(["memory of processes not available"] if device.uuid in faults.get("no_memory", ()) else []),
        *(f"memory released after {format_duration(seconds)}" for seconds in late),
        *(f"{call} answers {code}" for call, code in errors.items()),
    ]


def _faults(node: str) -> "FaultFile":
    from ebbtide_agent.gpu.faults import FaultFile

    return FaultFile(_state_dir(node))


def _state_dir(node: str) -> Path:
    """Return the directory of this node's fake GPUs; of the only node that has some if none is named."""
    nodes = Home.current().root / "nodes"
    found = sorted(path.parents[1].name for path in nodes.glob("*/gpus/gpus.json"))
    if node and not (nodes / node).is_dir():
        raise Failure(f"--node: no node {node!r} on this machine; there are: {', '.join(_present(nodes)) or 'none'}")
    if node and node not in found:
        raise Failure(f"--node: {node} has no fake GPUs, and real ones are not broken on purpose")
    faking = [name for name in found if not _has_real_gpus(nodes / name)]
    if node and node not in faking:
        raise Failure(f"--node: the GPUs of {node} are real, and not broken on purpose")
    if not node and len(faking) > 1:
        raise Failure(f"several nodes have fake GPUs here: --node {' or '.join(faking)}", USAGE)
    if not node and not faking:
        reason = "its GPUs are real, and not broken on purpose" if found else "'ebb up --gpus 2xRTX4090' starts one"
        raise Failure(f"no node with fake GPUs in {nodes.parent}: {reason}")
    return nodes / (node or faking[0]) / "gpus"


def _present(nodes: Path) -> list[str]:
    return sorted(path.name for path in nodes.glob("*") if path.is_dir())


def _has_real_gpus(node_dir: Path) -> bool:
    """Whether the node's agent uses real GPUs now; the files of its fake ones are older then."""
    record = read_record(node_dir / "agent.json") or {}
    return bool(record.get("gpu_backend", "fake") != "fake")


def _uuid(faults: "FaultFile", gpu: str) -> str:
    """Return the UUID of the GPU with this number or UUID; a GPU that is cut into slices may be named, too."""
    devices = _attempt(faults.devices)
    if gpu.isdecimal() and int(gpu) < len(devices):
        return devices[int(gpu)].uuid
    if gpu in {name for device in devices for name in (device.uuid, device.parent)} - {""}:
        return gpu
    raise Failure(f"GPU: no GPU {gpu!r}; there are 0 to {len(devices) - 1}, and their UUIDs ('ebb fake status')")


def _call(name: str) -> str:
    if not name.startswith("nvml"):
        raise Failure(f"CALL: {name!r} is no function of NVML, such as {MEMORY}", USAGE)
    return name


def _tell(change: Callable[[], object], words: str) -> None:
    _attempt(change)
    print(words)


def _attempt(call: Callable[[], T]) -> T:
    try:
        return call()
    except (OSError, ValueError) as error:
        raise Failure(str(error)) from None
