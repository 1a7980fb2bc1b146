"""Reads tables with a header line by line, with errors that name the file, line and column."""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final, TextIO

from ebbtide_core.model import limits, types
from ebbtide_core.model.spec.resources import check_gpu_range
from ebbtide_core.model.spec_error import SpecError

from ebbtide_sim.workload import WorkloadError

GIB: Final = 2**30
MAX_TIME_S: Final = limits.MAX_WORK_S
"""The limit of any time in a workload, in seconds: some 30,000 years."""
_SHARE: Final = re.compile(r"[0-9]{1,6}(/[0-9]{1,6}|\.[0-9]{1,6})?")


def fault(path: Path, line: int, field: str, problem: str) -> WorkloadError:
    """Make the error for a ``problem`` with ``field`` in that line of the file."""
    return WorkloadError(f"{path}:{line}: {field}: {problem}")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table with its cells by column; every accessor raises `WorkloadError` for an invalid cell.

    Without a ``default`` the cell must exist and not be empty.
    """

    path: Path
    line: int
    cells: Mapping[str, str]

    def fault(self, field: str, problem: str) -> WorkloadError:
        """Make the error for a ``problem`` with ``field`` in this line."""
        return fault(self.path, self.line, field, problem)

    def text(self, field: str, default: str | None = None) -> str:
        """Return a cell's text, which must be printable and have at most `limits.MAX_NAME_LENGTH` characters."""
        cell = self.cells.get(field, "")
        if cell == "":
            if default is None:
                raise self.fault(field, "is missing")
            return default
        if not cell.isprintable() or len(cell) > limits.MAX_NAME_LENGTH:
            raise self.fault(field, f"{cell[:40]!r} is not up to {limits.MAX_NAME_LENGTH} printable characters")
        return cell

    def word(self, field: str, words: Collection[str], default: str | None = None) -> str:
        """Return a cell that must be one of ``words``."""
        cell = self.text(field, default)
        if cell not in words:
            raise self.fault(field, f"{cell!r} is none of {', '.join(words)}")
        return cell

    def number(self, field: str, default: float | None = None, low: float = 0.0, high: float = MAX_TIME_S) -> float:
        """Return a cell as a finite number from ``low`` to ``high``."""
        if default is not None and self.cells.get(field, "") == "":
            return default
        cell = self.text(field)
        try:
            value = float(cell)
        except ValueError:
            raise self.fault(field, f"{cell!r} is not a number") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise self.fault(field, f"{cell} is not between {low:g} and {high:g}")
        return value

    def whole(self, field: str, default: int | None = None, low: int = 0, high: int = limits.MAX_MEM_BYTES) -> int:
        """Return a cell as a whole number from ``low`` to ``high``."""
        value = self.number(field, default, low, high)
        if value != int(value):
            raise self.fault(field, f"{self.cells[field]} is not a whole number")
        return int(value)

    def gib(self, field: str, default: float | None = None) -> int:
        """Return a cell with an amount of memory in GiB as bytes."""
        return round(self.number(field, default, 0.0, limits.MAX_MEM_BYTES / GIB) * GIB)

    def gpus(self, field: str) -> int:
        """Return a cell with a number or share of GPUs (``2``, ``1/4``, ``0.25``) in parts."""
        cell = self.text(field).strip()
        if not _SHARE.fullmatch(cell):
            raise self.fault(field, f"{cell!r} is neither a number of GPUs nor a share like 1/4")
        try:
            share = types.parts(Fraction(cell))
            check_gpu_range(share, share)
        except ZeroDivisionError:
            raise self.fault(field, f"{cell} divides by zero") from None
        except SpecError as error:
            raise self.fault(field, str(error).removeprefix("--gpus: ")) from None
        except ValueError as error:
            raise self.fault(field, str(error)) from None
        return share

    def unseen(self, field: str, seen: dict[str, int]) -> str:
        """Return a cell's text, which no earlier line may have, and record it in ``seen``."""
        id = self.text(field)
        first = seen.setdefault(id, self.line)
        if first != self.line:
            raise self.fault(field, f"{id!r} is the one of line {first}, too; each must be unique")
        return id


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a text file, unpacked if its name ends in ``.gz``; raise `WorkloadError` if it cannot be read."""
    try:
        with path.open("rb") as raw:
            packed = path.name.endswith(".gz")
            binary = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
                yield text
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(f"{path}: cannot be unpacked: {error}") from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_rows(path: Path, required: Collection[str], optional: Collection[str] | None = None) -> Iterator[Row]:
    """Yield the lines of a CSV file with a header, without blank lines.

    Columns may be in any order. All ``required`` ones must exist; others must be in ``optional``, unless that is None.
    """
    with opened(path) as text:
        reader = csv.reader(text, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, required, optional)
            for cells in reader:
                if len(cells) == len(header):
                    yield Row(path, reader.line_num, dict(zip(header, cells, strict=True)))
                elif any(cell.strip() for cell in cells):
                    problem = f"has {len(cells)} cells, but the header has {len(header)} columns"
                    raise fault(path, reader.line_num, "line", problem)
        except csv.Error as error:
            raise fault(path, reader.line_num, "line", f"is not CSV: {error}") from None


def _check_header(path: Path, header: list[str], required: Collection[str], optional: Collection[str] | None) -> None:
    for name in required:
        if name not in header:
            raise fault(path, 1, name, f"no such column; needed are {','.join(required)}")
    for name in header:
        if header.count(name) > 1:
            raise fault(path, 1, name[:40], "is there twice, each column must be unique")
        if optional is not None and name not in required and name not in optional:
            raise fault(path, 1, repr(name[:40]), f"unknown column; known are {','.join([*required, *optional])}")
