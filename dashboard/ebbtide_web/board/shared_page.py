"""Tells many viewers the same: all of it first, then only what changed, computed once however many there are."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from ebbtide_protos.quantities import printable


def cleaned(value: Any) -> Any:
    """Return ``value`` without control, bidirectional and other invisible characters in any text of it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): cleaned(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(each) for each in value]
    return value


def encoded(value: Any) -> str:
    """Return ``value`` as JSON in one line, safe to show."""
    return json.dumps(cleaned(value), separators=(",", ":"), allow_nan=False)


class SharedPage:
    """Cells of JSON by key. A viewer says which version it has seen, and gets one frame that leads to the newest."""

    def __init__(self) -> None:
        self.version = 0
        self.viewers = 0
        self._cells: dict[str, str] = {}
        self._full: bytes | None = None
        self._delta = b""
        self._news = asyncio.Event()

    def put(self, cells: Mapping[str, str]) -> None:
        """Replace all cells; wake the viewers if that changes any."""
        changed = {key: text for key, text in cells.items() if self._cells.get(key) != text}
        gone = [key for key in self._cells if key not in cells]
        if not (changed or gone) and self.version:
            return
        self._cells, self._full = dict(cells), None
        self._delta = _frame(changed, gone, full=False)
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def after(self, seen: int, at_most_s: float) -> tuple[int, bytes | None]:
        """Wait for a version after ``seen``; return it and its frame, or ``seen`` and None if none came in time."""
        if self.version == seen:
            try:
                async with asyncio.timeout(at_most_s):
                    await self._news.wait()
            except TimeoutError:
                return seen, None
        if seen and self.version == seen + 1:
            return self.version, self._delta
        if self._full is None:  # somebody new, or somebody who reads slowly and gets the newest of everything
            self._full = _frame(self._cells, [], full=True)
        return self.version, self._full


def _frame(cells: Mapping[str, str], gone: list[str], *, full: bool) -> bytes:
    body = ",".join(f"{json.dumps(key)}:{text}" for key, text in cells.items())
    text = f'{{"full":{"true" if full else "false"},"gone":{json.dumps(gone)},"cells":{{{body}}}}}'
    return event("frame", text)


def event(name: str, data: str) -> bytes:
    """Return one server-sent event; ``data`` is JSON, which has no line breaks."""
    return f"event: {name}\ndata: {data}\n\n".encode()
