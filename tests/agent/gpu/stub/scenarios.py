"""Scenarios of `scenarios.toml`: read, carried out on a node's state directory, and compared with a backend."""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from ebbtide_agent.gpu.backend import GpuBackend
from ebbtide_agent.gpu.profiles import MIB

from tests.agent.gpu.stub.state import State

_FILE = Path(__file__).with_name("scenarios.toml")
_USUAL = {"model": "A-24", "mem_bytes": 24 * 1024 * MIB, "idle_bytes": 16 * MIB, "persistence": True, "mig": False}
_UNITS = {"MiB": MIB, "GiB": 1024 * MIB}
_THROUGH_MPS = "(mps)"


@dataclass(frozen=True)
class Scenario:
    """A node and what happens to it."""

    title: str
    node: dict[str, Any]  # gpus.json
    steps: list[dict[str, Any]]
    library: str = "new"


@dataclass
class Run:
    """One scenario on one backend."""

    state: State
    open_backend: Callable[[], GpuBackend]
    processes: dict[str, Popen[bytes]] = field(default_factory=dict)

    def carry_out(self, scenario: Scenario) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Take every step; of each, what the backend then says, and what is expected."""
        self.state.write("gpus.json", scenario.node)
        backend = self.open_backend()
        for step in scenario.steps:
            backend = self._act(step, backend)
            yield self._found(step["expect"], backend), step["expect"]

    def _act(self, step: dict[str, Any], backend: GpuBackend) -> GpuBackend:
        if "faults" in step:
            self.state.write("faults.json", step["faults"])
        for name, gpus in step.get("start", {}).items():
            program = name if name.startswith("nvidia-") else ""
            self.processes[name] = self.state.start(gpus, _THROUGH_MPS in name, program)
        for name in step.get("end", []):
            self.state.end(self.processes.pop(name))
        return self.open_backend() if step.get("open") else backend

    def _found(self, expected: dict[str, Any], backend: GpuBackend) -> dict[str, Any]:
        """As much of what the backend says as is expected of it, in the same form."""
        found: dict[str, Any] = {}
        for kind, wanted in expected.items():
            match kind:
                case "gpus":
                    pairs = zip(backend.gpus(), wanted, strict=False)
                    rest = backend.gpus()[len(wanted) :]
                    found[kind] = [*(self._parts(gpu, names) for gpu, names in pairs), *rest]
                case "links":
                    found[kind] = [f"{link.one}-{link.other} {link.kind.name}" for link in backend.links()]
                case "driver":
                    found[kind] = self._parts(backend.driver(), wanted)
                case "settings":
                    found[kind] = {uuid: self._parts(backend.settings(uuid), wanted[uuid]) for uuid in wanted}
                case "readings":
                    found[kind] = {uuid: self._parts(backend.read(uuid), wanted[uuid]) for uuid in wanted}
        return found

    def _parts(self, said: object, names: dict[str, Any]) -> dict[str, Any]:
        return {name: self._plain(name, getattr(said, name)) for name in names}

    def _plain(self, name: str, value: Any) -> Any:
        """In the file's words. Fails where a process that computes through MPS, or only that, is not told as such."""
        match name, value:
            case "xids", tuple():
                return list(value)
            case "processes", tuple():
                names = {process.pid: name for name, process in self.processes.items()}
                assert [process.mps for process in value] == [_THROUGH_MPS in names[process.pid] for process in value]
                return {names[process.pid]: process.mem_bytes for process in value}
            case _:
                return value


def load() -> list[Scenario]:
    """Every scenario of the file."""
    return [_scenario(entry) for entry in tomllib.loads(_FILE.read_text())["scenario"]]


def _scenario(entry: dict[str, Any]) -> Scenario:
    entry = _values(entry)
    gpus = entry["gpus"]
    if isinstance(gpus, int):
        gpus = [{"uuid": chr(ord("A") + number)} for number in range(gpus)]
    described = [{**_USUAL, **gpu} for gpu in gpus]
    node = {"driver": "580.65.06", "cuda": "13.0", "gpus": described, **entry.get("node", {})}
    return Scenario(entry["title"], node, entry["step"], entry.get("library", "new"))


def _values(value: Any) -> Any:
    """Sizes as bytes, "none" as None, all the way down."""
    match value:
        case dict():
            return {name: _values(inner) for name, inner in value.items()}
        case list():
            return [_values(inner) for inner in value]
        case "none":
            return None
        case str() if value[:-3].isdigit() and value[-3:] in _UNITS:
            return int(value[:-3]) * _UNITS[value[-3:]]
        case _:
            return value
