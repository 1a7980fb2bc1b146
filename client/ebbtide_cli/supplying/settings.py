"""Read what is to be borrowed from whom: a file with a table ``[supply.NAME]`` for each supply."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from ebbtide_core.model import limits
from ebbtide_core.supply.supply import SUPPLY_LABEL, SupplySettings
from ebbtide_protos.quantities import parse_duration, parse_size
from ebbtide_protos.v1 import agent_pb2

from ebbtide_cli.errors import USAGE, Failure

Value = TypeVar("Value")

FILE: Final = "supply.toml"
"""Name of the file in ``EBB_HOME``."""
LONGEST_NAME: Final = 32
NOTICE_OF_PODS: Final = "60s"
HOME_IN_POD: Final = "/tmp/ebbtide"
"""It is in the container, because others may write to an empty volume."""
_OF_POD: Final = frozenset({"containers", "restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds"})
_OF_CONTAINER: Final = frozenset({"name", "image", "command", "args"})
"""Fields of a pod's spec, and of its container's, that cannot be set."""
MOST_GPUS: Final = 64
PILOT_BYTES: Final = 512 << 20
"""Memory of a pod for the pilot itself: with too little, its whole container is killed."""
ANY_CAPABILITY: Final = "999.999"
"""Meets every `--compute-capability`, as that of a node's GPUs is not known before one is up."""
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
class PodOptions:
    """Nodes are borrowed from Kubernetes, each as a pod of ``image`` in ``namespace``.

    ``context`` is that of the configuration of kubectl; if empty, its current one. ``pod`` is merged into the pod's
    spec, ``container`` into that of its container, and ``annotations`` and ``labels`` into its metadata.
    ``gpu_resource`` is what the GPUs are called there.
    """

    image: str
    namespace: str
    context: str
    gpu_resource: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    pod: Mapping[str, Any]
    container: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Borrowing:
    """One supply: how much is borrowed, and what each node is like.

    ``after_s`` is how long a job has waited before a node is asked for it; a node that was idle for ``idle_s`` is given
    back. The lender kills what is left ``notice_s`` after SIGTERM; None: it says itself how long it waits. ``agent``
    has further options for the agents, which keep their files in ``home``. ``assumed`` is for simulations (see
    `ebbtide_cli.supplying.simulated`).
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
    notice_s: float | None
    home: Path
    checkpoint_root: Path | None
    lender: SlurmOptions | HookCommands | PodOptions
    agent: tuple[str, ...]
    assumed: Mapping[str, Any]

    @property
    def offered_bytes(self) -> int:
        """The memory that a node offers to jobs; of a pod, in whole MiB."""
        if not isinstance(self.lender, PodOptions):
            return self.mem_bytes
        return max(self.mem_bytes - PILOT_BYTES, self.mem_bytes // 2) >> 20 << 20

    @property
    def mark(self) -> str:
        """A mark that is another one if anything is that says what a node is like."""
        sizes = (self.gpus, self.gpu_type, self.gpu_mem_bytes, self.cpus, self.mem_bytes)
        said = repr((self.pool, self.checkpoint_root, self.lender, self.agent, sizes))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def like(self, known: agent_pb2.Hello | None, now: float) -> agent_pb2.Hello:
        """Return how a borrowed node would introduce itself: as the ``known`` one did, else as the file says."""
        hello = agent_pb2.Hello() if known is None else known
        if known is None:
            gpus = [
                agent_pb2.GpuInfo(
                    uuid=str(index),
                    index=index,
                    model=self.gpu_type,
                    mem_bytes=self.gpu_mem_bytes,
                    healthy=True,
                    compute_capability=ANY_CAPABILITY,
                )
                for index in range(self.gpus)
            ]
            hello.gpus.extend(gpus)
            hello.cpus, hello.mem_bytes = self.cpus, self.offered_bytes
            hello.checkpoint_root_id = self._root_id()
            hello.labels.update(label.partition("=")[::2] for label in _given(self.agent, "--label"))
            hello.taints.extend(_given(self.agent, "--taint"))
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


def _given(words: Sequence[str], option: str) -> Iterator[str]:
    """Yield each value that ``option`` is given in a command's words."""
    for word, next_word in pairwise((*words, "")):
        if word == option:
            yield next_word
        elif word.startswith(f"{option}="):
            yield word.removeprefix(f"{option}=")


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
    lender = _lender(table)
    home = HOME_IN_POD if isinstance(lender, PodOptions) else str(path.parent / "supplies" / name / "home")
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
        notice_s=table.read("notice", _duration_if_any, NOTICE_OF_PODS if isinstance(lender, PodOptions) else ""),
        home=Path(table.take("home", str, home)).expanduser().absolute(),
        checkpoint_root=Path(root).expanduser().absolute() if root else None,
        lender=lender,
        agent=table.words("agent"),
        assumed=table.take("assumed", dict, {}),
    )
    table.check_empty(FIELDS)
    if isinstance(lender, PodOptions):
        _check_pods(found, lender, table)
    return found


def _duration_if_any(text: str) -> float | None:
    return parse_duration(text) if text else None


def _lender(table: "SupplyTable") -> SlurmOptions | HookCommands | PodOptions:
    match table.take("kind", str, "slurm"):
        case "slurm":
            return SlurmOptions(table.words("sbatch"))
        case "hook":
            return HookCommands(*(table.words(field, least=1) for field in ("grow", "shrink", "list")))
        case "kubernetes":
            return PodOptions(
                image=table.take("image", str),
                namespace=table.take("namespace", str, "default"),
                context=table.take("context", str, ""),
                gpu_resource=table.take("gpu_resource", str, "nvidia.com/gpu"),
                labels=table.texts("labels"),
                annotations=table.texts("annotations"),
                pod=table.take("pod", dict, {}),
                container=table.take("container", dict, {}),
            )
        case kind:
            raise Failure(f"{table.where} kind: {kind!r} is none of slurm, hook and kubernetes", USAGE)


def _check_pods(found: Borrowing, options: PodOptions, table: "SupplyTable") -> None:
    """Refuse pods that Kubernetes would refuse, that would take the whole node, or whose checkpoints would be lost."""

    def refuse(words: str) -> NoReturn:
        raise Failure(f"{table.where} {words}", USAGE)

    if not re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", found.name):
        refuse("the name of a supply of pods has small letters, digits and '-'")
    for field, is_known in (("cpus", found.cpus < limits.MAX_CPUS), ("mem", found.mem_bytes < limits.MAX_MEM_BYTES)):
        if not is_known:
            refuse(f"{field}: is missing")
    for where, spec, ours in (("pod", options.pod, _OF_POD), ("container", options.container, _OF_CONTAINER)):
        for field in sorted(spec.keys() & ours):
            refuse(f"{where}.{field}: is set by Ebbtide")
    if not isinstance(options.pod.get("securityContext", {}), dict):
        refuse("pod.securityContext: is not a table")
    mounts: Any = options.container.get("volumeMounts", [])
    if not (isinstance(mounts, list) and all(isinstance(mount, dict) and "mountPath" in mount for mount in mounts)):
        refuse("container.volumeMounts: is not a list of tables, each with a mountPath")
    paths = [Path(str(mount["mountPath"])) for mount in mounts]
    root = found.checkpoint_root
    if root is None:
        refuse("checkpoint_root: is missing: checkpoints would be lost with their pod")
    if not any(root.is_relative_to(path) for path in paths):
        refuse(f"checkpoint_root: {root} is in none of container.volumeMounts, and would be lost with its pod")


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

    def texts(self, field: str) -> Mapping[str, str]:
        """Return a table of texts; empty if there is none."""
        value: dict[Any, Any] = self.take(field, dict, {})
        if not all(isinstance(text, str) for text in value.values()):
            raise Failure(f"{self.where} {field}: is not a table of texts", USAGE)
        return value

    def check_empty(self, known: Sequence[str]) -> None:
        """Refuse fields that were not taken; ``known`` are all that there are."""
        if self._values:
            from ebbtide_core.model.spelling import did_you_mean

            field = min(self._values)
            raise Failure(f"{self.where} {field}: there is no such field{did_you_mean(field, known)}", USAGE)


FIELDS: Final = (
    *("kind", "pool", "max_nodes", "min_nodes", "backlog", "gpus_per_node", "gpu_type", "gpu_mem", "cpus", "mem"),
    *("time", "after", "idle", "home", "checkpoint_root", "agent", "assumed"),
    *("notice", "sbatch", "grow", "shrink", "list"),
    *("image", "namespace", "context", "gpu_resource", "labels", "annotations", "pod", "container"),
)
