"""The options of ``ebb submit`` as keywords: with its defaults, its checks and its errors, because it reads them."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final, Literal, TypedDict

import click
from ebbtide_core.model.spelling import did_you_mean
from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import usage_words
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.address import Address
from ebbtide_cli.submitting.job import submit_request
from ebbtide_cli.values import MAX_SHARE_DENOMINATOR
from ebbtide_cli.verbs.submit import command

Count = int | float | Fraction | str | tuple[int, int]
"""A number such as 2, 1/4 or 0.25, a range such as (1, 4), or a text as on the command line: ``"1-4"``."""
Time = str | timedelta
Words = str | os.PathLike[str] | Sequence[object]
"""A text, or several of them for an option that may be repeated."""


class SizeOptions(TypedDict, total=False):
    """How many GPUs and CPUs a job asks for, and how much memory."""

    gpus: Count
    nodes: Count
    cpu_only: bool
    gpu_mem: str
    cpus: float
    mem: str


class PlaceOptions(TypedDict, total=False):
    """Which nodes and GPUs a job accepts."""

    pool: str
    select: Words | Mapping[str, str]
    tolerate: Words
    on: Words
    exclude: Words
    gpu_type: Words
    compute_capability: str
    gpu_total_mem: str
    mixed_gpus: bool
    require_path: Words


class CommandOptions(TypedDict, total=False):
    """What a job runs, and in which environment."""

    name: str
    workdir: str | os.PathLike[str]
    launch: Literal["single", "ddp"]
    retries: int
    env: Words | Mapping[str, object]
    env_all: bool
    venv: str | os.PathLike[str]
    conda: str | os.PathLike[str]
    sdk: bool
    snapshot: bool
    snapshot_limit: str


class QueueOptions(TypedDict, total=False):
    """How a job stands in the queue, and what it waits for."""

    te: bool
    priority: int
    weight: float
    group: str
    after: object
    begin: str
    hold: bool


class SweepOptions(TypedDict, total=False):
    """Which tasks an array has, and how many of them run at a time."""

    array: str
    max_concurrent: int
    max_slots: int
    param: Words | Mapping[str, Sequence[object]]
    param_file: str | os.PathLike[str]
    sample: int
    seed: int
    asha: str


class SuspendOptions(TypedDict, total=False):
    """How a job is stopped and goes on, and for how long it may run."""

    grace: Time
    time: Time
    suspend: Literal["checkpoint", "swap", "none"]
    exit0: Literal["suspended", "completed"]
    signal: str
    signal_target: Literal["auto", "leader", "all"]
    resume_args: str
    move_checkpoints: bool
    failover_after: Time
    warm: bool
    idle_ok: bool


class OutputOptions(TypedDict, total=False):
    """Where the output of a job goes, and who is notified of what."""

    output: str | os.PathLike[str]
    prefix_ranks: bool
    on_log: Words
    notify: Words


class JobOptions(
    SizeOptions,
    PlaceOptions,
    CommandOptions,
    QueueOptions,
    SweepOptions,
    SuspendOptions,
    OutputOptions,
    total=False,
):
    """The options of ``ebb submit``, under their names with ``_`` for ``-``; sizes and times are written as there.

    An option that may be repeated takes a list. ``env``, ``select`` and ``param`` take a mapping, too; ``te=False`` is
    ``--be``, and ``gpus=0`` is ``--cpu-only``.
    """

    template: Words


NOT_HERE: Final = frozenset({"help_all", "wait", "dry_run", "json", "master"})
"""Options of ``ebb submit`` that are about its own output, or are methods here."""


def request(master: str | Address, argv: Sequence[str], options: Mapping[str, Any]) -> client_pb2.SubmitRequest:
    """Return the request for a job as ``ebb submit OPTIONS ARGV`` makes it. Raises `Failure`, TypeError."""
    if argv and argv[0].startswith("-") and argv[0] != "--":
        raise Failure(f"submit: {abbreviated(argv[0])!r} is no command: options are keywords, such as gpus=2", USAGE)
    try:
        context = command.make_context("submit", [*words_of(options), *argv])
    except click.UsageError as error:
        raise Failure(f"submit: {usage_words(error)}", USAGE) from None
    with context:
        given = context.params
        given["master"] = master
        return submit_request(master, given, hold=bool(given["hold"]))


def words_of(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options as they are typed; None leaves one out. Raises TypeError for one that does not exist."""
    known = known_options()
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"there is no option {abbreviated(name)!r}{did_you_mean(name, list(known))}")
        if value is None:
            continue
        if name == "gpus" and value == 0 and not isinstance(value, str):
            yield "--cpu-only"
        else:
            yield from _words(name, known[name], value)


def known_options() -> dict[str, click.Option]:
    """Return the options of ``ebb submit`` by the names of their keywords."""
    named = (
        (option.opts[0].removeprefix("--").replace("-", "_"), option)
        for option in command.params
        if isinstance(option, click.Option)
    )
    return {name: option for name, option in named if name not in NOT_HERE}


def _words(name: str, option: click.Option, value: Any) -> Iterator[str]:
    word = option.opts[0]
    if option.is_flag:
        if not isinstance(value, bool):
            raise TypeError(f"{name} is True or False, not {abbreviated(repr(value))}")
        yield from [word] if value else option.secondary_opts[:1]
        return
    several = isinstance(value, Mapping | Sequence) and not isinstance(value, str)
    if option.multiple and several:
        entries = value.items() if isinstance(value, Mapping) else value
        for entry in entries:
            yield f"{word}={_setting(name, *entry) if isinstance(value, Mapping) else text_of(name, entry)}"
    else:
        yield f"{word}={text_of(name, value)}"


def _setting(name: str, key: str, value: Any) -> str:
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping | Set) or _axes(value) == 0:
        return f"{key}={text_of(name, value)}"
    texts = [text_of(name, one) for one in value]  # a sequence, or numpy's array
    if name == "param" and (split := next((text for text in texts if "," in text), "")):
        raise Failure(f"submit: --param: {key}: a value in a list has no comma, unlike {abbreviated(split)!r}", USAGE)
    return f"{key}={','.join(texts)}"


def text_of(name: str, value: Any) -> str:
    """Return a value as the command line has it. Raises TypeError for one that no option takes."""
    if _axes(value):
        raise TypeError(f"{name} takes one value, not {abbreviated(repr(value))}")
    value = value.__array__()[()] if _axes(value) == 0 else value  # numpy's number, which is written as it was typed
    match value:
        case bool():
            raise TypeError(f"{name} is not True or False")
        case float() if name == "gpus":
            return str(Fraction(value).limit_denominator(MAX_SHARE_DENOMINATOR))
        case float():
            return repr(float(value))  # a subclass, such as numpy's, may write itself in another way
        case timedelta():
            return f"{value.total_seconds():f}s"
        case (int(low), int(high)) if name in ("gpus", "nodes"):
            return f"{low}-{high}"
        case list() | tuple() | dict() | set():
            raise TypeError(f"{name} takes one value, not {abbreviated(repr(value))}")
        case os.PathLike():
            return str(os.fspath(value))
        case _:
            return str(value)


def _axes(value: Any) -> int | None:
    """Return how many axes an array of any library has; none if it is a single number, None for other values."""
    axes = getattr(value, "ndim", None)
    return axes if isinstance(axes, int) and hasattr(value, "__array__") else None
