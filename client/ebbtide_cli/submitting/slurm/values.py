"""Parse values as sbatch does. Every function raises ``ValueError``, which says what is wrong with a value."""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Final

MAX_HOSTS: Final = 4096
MAX_TASKS: Final = 1_000_000
_UNLIMITED: Final = ("unlimited", "infinite", "0", "-1")
_TIME: Final = re.compile(r"(?:(?P<days>\d{1,5})-)?(?P<first>\d{1,9})(?::(?P<second>\d{1,5}))?(?::(?P<third>\d{1,5}))?")
_MEMORY_UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A number of GPUs of a ``model``; an empty model means any."""

    count: Fraction
    model: str = ""


def minutes_or_more(text: str) -> int | None:
    """Return seconds for ``90``, ``90:30``, ``1:30:00``, ``2-12``, ``2-12:30``, ``2-12:30:00``; None if unlimited."""
    if text.lower() in _UNLIMITED:
        return None
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time: write minutes, HH:MM:SS, or DAYS-HH:MM:SS")
    first, second, third = (int(found[part] or 0) for part in ("first", "second", "third"))
    if found["days"] is not None:
        seconds = int(found["days"]) * 86_400 + first * 3600 + second * 60 + third
    elif found["third"] is not None:
        seconds = first * 3600 + second * 60 + third
    else:
        seconds = first * 60 + second
    return seconds or None


def memory(text: str) -> int:
    """Return the bytes of ``4000`` (MiB), ``16G``, ``1T``."""
    found = re.fullmatch(r"(\d{1,12})([kmgt]?)b?", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write 4000M, 16G or 1T")
    return int(found[1]) * _MEMORY_UNITS[found[2] or "m"]


def count(text: str, most: int = MAX_TASKS) -> int:
    """Return a positive whole number, at most ``most``."""
    if not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= most:
        raise ValueError(f"{text!r} is not a number from 1 to {most}")
    return int(text)


def nodes(text: str) -> tuple[int, int]:
    """Return the least and the most of ``4``, ``2-4``."""
    low, dash, high = text.partition("-")
    least = count(low, MAX_HOSTS)
    most = count(high, MAX_HOSTS) if dash else least
    if most < least:
        raise ValueError(f"{text!r} begins above its end")
    return least, most


def gpus(text: str) -> GpuRequest:
    """Return the GPUs of ``4`` or ``a100:4``."""
    model, _, number = text.rpartition(":")
    if not re.fullmatch(r"\d{1,6}", number):
        raise ValueError(f"{text!r} is not a number of GPUs: write 4 or a100:4")
    return GpuRequest(Fraction(int(number)), _model(model))


def gres(text: str) -> GpuRequest | None:
    """Return the GPUs of ``gpu``, ``gpu:4``, ``gpu:a100:4``, ``mps:50`` (percent of one GPU); None for ``none``."""
    found: GpuRequest | None = None
    for item in text.split(","):
        one = _one_gres(item)
        if one is not None and found is not None:
            raise ValueError("names GPUs twice: a job has one kind of them")
        found = one or found
    return found


def _one_gres(text: str) -> GpuRequest | None:
    kind, *details = re.sub(r"\(.*\)$", "", text).removeprefix("gres/").replace("=", ":").split(":")
    match kind, details:
        case "none" | "", []:
            return None
        case "gpu", []:
            return GpuRequest(Fraction(1))
        case "gpu", [number] if number.isdecimal():
            return gpus(number)
        case "gpu", [model]:
            return GpuRequest(Fraction(1), _model(model))
        case "gpu", [model, number]:
            return gpus(f"{model}:{number}")
        case "mps", [*_, percent] if re.fullmatch(r"\d{1,3}", percent) and 1 <= int(percent) <= 100:
            return GpuRequest(Fraction(1, min(16, floor(100 / int(percent)))))
        case "shard", _:
            raise ValueError("how much of a GPU a shard is, is not known here: write #EBB --gpus 1/4")
    raise ValueError(f"{text!r} is not known here: there are gpu and mps")


def _model(text: str) -> str:
    if text and not re.fullmatch(r"[\w.+-]{1,40}", text):
        raise ValueError(f"{text!r} is not the model of a GPU")
    return text


def hosts(text: str) -> list[str]:
    """Return the nodes of ``node[01-03,07],login``."""
    found: list[str] = []
    items = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    if ",".join(items) != text:
        raise ValueError(f"{text!r} is not a list of nodes: write node[01-04]")
    for item in items:
        found += _hosts(item)
        if len(found) > MAX_HOSTS:
            raise ValueError(f"names more than {MAX_HOSTS} nodes")
    return found


def _hosts(item: str) -> list[str]:
    shape = re.fullmatch(r"([^\[\]]*)\[([0-9,-]+)\]([^\[\]]*)", item)
    if shape is None:
        if "[" in item or "]" in item:
            raise ValueError(f"{item!r} is not a list of nodes: write node[01-04]")
        return [item]
    before, ranges, after = shape.groups()
    names: list[str] = []
    for piece in ranges.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", piece)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if found is None or high - low > MAX_HOSTS:
            raise ValueError(f"{item!r} is not a list of nodes: write node[01-04]")
        if high < low:
            raise ValueError(f"{item!r}: {piece} begins above its end")
        names += [f"{before}{number:0{len(found[1])}}{after}" for number in range(low, high + 1)]
    return names
