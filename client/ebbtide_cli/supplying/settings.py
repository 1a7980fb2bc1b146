"""Read what is to be borrowed from whom: a file with a table ``[supply.NAME]`` for each supply."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from ebbtide_core.model import limits
from ebbtide_core.supply.supply import SUPPLY_LABEL, SupplySettings
from ebbtide_protos.quantities import parse_duration, parse_size
from ebbtide_protos.v1 import agent_pb2

from ebbtide_cli.errors import USAGE, Failure

Value = TypeVar("Value")

FILE: Final = "supply.toml"
"""Name of the file in ``EBB_HOME``."""
LONGEST_NAME: Final = 32
MOST_GPUS: Final = 64
_ROOT_MARKER: Final = ".ebbtide-root"


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Nodes are borrowed from Slurm, with further options of ``sbatch``."""

    sbatch: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HookCommands:
    """Nodes are borrowed with commands."""

    grow: tuple[str, ...]
    shrink: tuple[str, ...]
    list: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Borrowing:
    """One supply: how much is borrowed, and what each node is like.

    ``after_s`` is how long a job has waited before a node is asked for it; a node that was idle for ``idle_s`` is given
    back. ``agent`` has further options for the agents, which keep their files in ``home``. ``assumed`` is for
    simulations (see `ebbtide_cli.supplying.simulated`).
    """

    name: str
    settings: SupplySettings
    pool: str
    gpus: int
    gpu_type: str
    gpu_mem_bytes: int
    cpus: float
    mem_bytes: int
    time_s: float
    after_s: float
    idle_s: float
    home: Path
    checkpoint_root: Path | None
    lender: SlurmOptions | HookCommands
    agent: tuple[str, ...]
    assumed: Mapping[str, Any]

    def like(self, known: agent_pb2.Hello | None, now: float) -> agent_pb2.Hello:
        """Return how a borrowed node would introduce itself: as the ``known`` one did, else as the file says."""
        hello = agent_pb2.Hello() if known is None else known
        if known is None:
            gpus = [
                agent_pb2.GpuInfo(
                    uuid=str(index), index=index, model=self.gpu_type, mem_bytes=self.gpu_mem_bytes, healthy=True
                )
                for index in range(self.gpus)
            ]
            hello.gpus.extend(gpus)
            hello.cpus, hello.mem_bytes = self.cpus, self.mem_bytes
            hello.checkpoint_root_id = self._root_id()
        hello.node, hello.hostname, hello.boot_id, hello.gpu_backend = self.name, self.name, self.name, "nvml"
        hello.pool = self.pool
        hello.labels[SUPPLY_LABEL] = self.name
        hello.loan.until = now + self.time_s
        return hello

    def _root_id(self) -> str:
        """Return the identity of the checkpoint root that all nodes share; empty if there is none yet."""
        if self.checkpoint_root is None:
            return ""
        try:
            return (self.checkpoint_root / _ROOT_MARKER).read_text().strip()
        except OSError:
            return ""


def names(path: Path) -> list[str]:
    """Return the names of all supplies in the file. Raises `Failure`."""
    return sorted(_tables(path))


def read(path: Path, name: str) -> Borrowing:
    """Read one supply. Raises `Failure`, which names the file and the field."""
    tables = _tables(path)
    if name not in tables:
        there = ", ".join(sorted(tables)) or "none"
        raise Failure(f"supply: {path} has no [supply.{name}]; there are: {there}", USAGE)
    table = SupplyTable(dict(tables[name]), f"supply: {path}: [supply.{name}]")
    try:
        settings = SupplySettings(
            table.take("max_nodes", int), table.take("min_nodes", int, 0), table.take("backlog", int, 2)
        )
    except ValueError as error:
        raise Failure(f"{table.where} {error}", USAGE) from None
    root = table.take("checkpoint_root", str, "")
    gpus = table.take("gpus_per_node", int)
    if not 0 <= gpus <= MOST_GPUS:
        raise Failure(f"{table.where} gpus_per_node: is not between 0 and {MOST_GPUS}", USAGE)
    found = Borrowing(
        name=name,
        settings=settings,
        pool=table.take("pool", str, "default"),
        gpus=gpus,
        gpu_type=table.take("gpu_type", str, "unknown"),
        gpu_mem_bytes=table.read("gpu_mem", parse_size, "80GiB"),
        cpus=float(table.take("cpus", int, 0) or limits.MAX_CPUS),
        mem_bytes=table.read("mem", parse_size, "0GiB") or limits.MAX_MEM_BYTES,
        time_s=table.read("time", parse_duration),
        after_s=table.read("after", parse_duration, "30s"),
        idle_s=table.read("idle", parse_duration, "5m"),
        home=Path(table.take("home", str, str(path.parent / "supplies" / name / "home"))).expanduser().absolute(),
        checkpoint_root=Path(root).expanduser().absolute() if root else None,
        lender=_lender(table),
        agent=table.words("agent"),
        assumed=table.take("assumed", dict, {}),
    )
    table.check_empty(FIELDS)
    return found


def _lender(table: "SupplyTable") -> SlurmOptions | HookCommands:
    match table.take("kind", str, "slurm"):
        case "slurm":
            return SlurmOptions(table.words("sbatch"))
        case "hook":
            return HookCommands(*(table.words(field, least=1) for field in ("grow", "shrink", "list")))
        case kind:
            raise Failure(f"{table.where} kind: {kind!r} is neither slurm nor hook", USAGE)


def _tables(path: Path) -> Mapping[str, Any]:
    import tomllib  # few have such a file

    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise Failure(f"supply: there is no {path}: 'ebb docs supplies' shows one", USAGE) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"supply: {path}: {error}", USAGE) from None
    tables = content.get("supply", {})
    for name in tables if isinstance(tables, dict) else ():
        plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii() and name[0].isalnum()
        if not plain or len(name) > LONGEST_NAME or not isinstance(tables[name], dict):
            raise Failure(
                f"supply: {path}: [supply.{name}]: a name has up to {LONGEST_NAME} letters, digits, '-' and '_'", USAGE
            )
    if not isinstance(tables, dict) or content.keys() - {"supply"}:
        raise Failure(f"supply: {path}: has something else than tables [supply.NAME]", USAGE)
    return tables


class SupplyTable:
    """A table of the file, from which each known field is taken once; errors name the field."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.where = where
        self._values = values

    def take(self, field: str, kind: type[Value], default: Value | None = None) -> Value:
        """Return a field of that kind."""
        value = self._values.pop(field, default)
        if value is None:
            raise Failure(f"{self.where} {field}: is missing", USAGE)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Failure(f"{self.where} {field}: {value!r} is not of type {kind.__name__}", USAGE)
        return value

    def read(self, field: str, parse: Callable[[str], Value], default: str | None = None) -> Value:
        """Return a field that is written as a duration or a size."""
        try:
            return parse(self.take(field, str, default))
        except ValueError as error:
            raise Failure(f"{self.where} {field}: {error}", USAGE) from None

    def words(self, field: str, least: int = 0) -> tuple[str, ...]:
        """Return a list of at least so many texts; empty if there is none."""
        value: list[Any] = self.take(field, list, None if least else [])
        if len(value) < least:
            raise Failure(f"{self.where} {field}: is empty", USAGE)
        if not all(isinstance(word, str) and word for word in value):
            raise Failure(f"{self.where} {field}: is not a list of texts", USAGE)
        return tuple(value)

    def check_empty(self, known: Sequence[str]) -> None:
        """Refuse fields that were not taken; ``known`` are all that there are."""
        if self._values:
            from ebbtide_core.model.spelling import did_you_mean

            field = min(self._values)
            raise Failure(f"{self.where} {field}: there is no such field{did_you_mean(field, known)}", USAGE)


FIELDS: Final = (
    *("kind", "pool", "max_nodes", "min_nodes", "backlog", "gpus_per_node", "gpu_type", "gpu_mem", "cpus", "mem"),
    *("time", "after", "idle", "home", "checkpoint_root", "agent", "assumed"),
    *("sbatch", "grow", "shrink", "list"),
)
