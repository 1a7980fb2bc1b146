"""Looks for the job's and the administrator's patterns in what an attempt prints.

In the file, behind the job's back: however much it prints, it never waits for us. What is too much to be looked through
is passed over, and a pattern that takes too long is given up.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.contract.intent import LogRule
from ebbtide_agent.supervisor.status import LogMatch

LINE_BYTES = 4096
"""Of a line that are looked at; progress bars write lines without end."""
WINDOW_BYTES = 512 * 1024
"""That are looked through at a time."""
MOST_BEHIND_BYTES = 8 * WINDOW_BYTES
"""Of which more than that is left, most is passed over."""
END_BYTES = 64 * 1024
"""A failure is put down to what is among the last bytes; what was printed hours before had no such consequence."""
TOLD_CHARACTERS = 200
_CPU_S = 0.1
"""That one pattern may take for a window; a plain one takes a tenth of it."""
_NOTIFY = "LOG_ACTION_NOTIFY"
_NO_RETRY = "LOG_ACTION_NO_RETRY"
_IGNORE = "LOG_ACTION_IGNORE"
_LINE = re.compile(rb"[^\r\n]+")

_Line = tuple[int, str]  # where it begins in the file, in bytes


class _TooSlow(Exception):
    """A pattern takes too long."""


@dataclass(slots=True, eq=False)
class _File:
    path: Path
    gpus: tuple[str, ...]  # of whoever prints into it
    offset: int = 0  # where the next line to be looked at begins
    size: int = 0
    skips: bool = False  # the rest of a line, which was too long


@dataclass(slots=True, eq=False)
class _Rule:
    regex: "re.Pattern[str]"
    rule: LogRule
    last: tuple[_File, int, LogMatch] | None = None  # where it was found, if that only counts near the end


class LogRules:
    """The rules that are looked for; `matches` are those that were found, each once."""

    def __init__(self, rules: Sequence[LogRule], files: Sequence[tuple[Path, tuple[str, ...]]]) -> None:
        """Each of `files` with the UUIDs of the GPUs of those who print into it."""
        self._given = rules
        self._rules: list[_Rule] = []
        self._ignored: list[_Rule] = []
        self._files = [_File(path, gpus) for path, gpus in files]
        self.matches: list[LogMatch] = []

    def look(self, *, final: bool = False) -> bool:
        """Look through what was printed since; whether there was anything. In the end, all of the last bytes."""
        if self._given:
            self._compile()
        if not self._rules:
            return False
        grown = [self._look_at(file, final) for file in self._files]
        if final:
            found = (rule.last for rule in self._rules if rule.last is not None)
            self.matches += [match for file, offset, match in found if file.size - offset <= END_BYTES]
        return any(grown)

    def _compile(self) -> None:
        """At the first look: the job's start does not wait for it."""
        given, self._given = self._given, ()
        compiled = [_Rule(regex, rule) for rule in given if (regex := _compiled(rule.pattern)) is not None]
        self._rules = [rule for rule in compiled if rule.rule.action != _IGNORE]
        self._ignored = [rule for rule in compiled if rule.rule.action == _IGNORE]

    def _look_at(self, file: _File, final: bool) -> bool:
        before = file.offset
        while text := _read(file, final):
            start = file.offset
            taken = len(text) if final and start + len(text) >= file.size else _whole_lines(text)
            if not taken and len(text) > LINE_BYTES:
                taken = len(text)
            if file.skips:
                begin = _first_end(text)
                file.skips = begin == len(text)
            else:
                begin, file.skips = 0, taken > 0 and text[taken - 1 : taken] not in b"\r\n"
            file.offset += taken
            self._search(file, [(start + at, line) for at, line in _lines(text, begin, taken)])
            if not final or not taken:
                break
        return file.offset > before

    def _search(self, file: _File, lines: list[_Line]) -> None:
        if not lines:
            return
        for rule in list(self._rules):
            try:
                with _time_limit():
                    found = self._find(rule, lines)
            except _TooSlow:
                self._rules.remove(rule)
                told = "(not looked for any more: it takes too long)"
                self.matches.append(LogMatch(rule.rule.pattern, _NOTIFY, told, []))
                continue
            if found is None:
                continue
            offset, line = found
            match = LogMatch(rule.rule.pattern, rule.rule.action, line.strip()[:TOLD_CHARACTERS], list(file.gpus))
            if rule.rule.action == _NO_RETRY:
                rule.last = file, offset, match
            else:
                self._rules.remove(rule)
                self.matches.append(match)

    def _find(self, rule: _Rule, lines: list[_Line]) -> _Line | None:
        """The line to be told of: the first, or the last where only the end counts."""
        for line in reversed(lines) if rule.rule.action == _NO_RETRY else lines:
            if rule.regex.search(line[1]) and not any(ignored.regex.search(line[1]) for ignored in self._ignored):
                return line
        return None


def _read(file: _File, final: bool) -> bytes:
    """What comes next of it; nothing if there is nothing new, or it cannot be read."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        file.size = os.fstat(descriptor).st_size
        most = WINDOW_BYTES if final else MOST_BEHIND_BYTES
        if file.size - file.offset > most:
            file.offset, file.skips = file.size - WINDOW_BYTES, True
        return os.pread(descriptor, WINDOW_BYTES, file.offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _whole_lines(text: bytes) -> int:
    """How many bytes of it are lines that have an end."""
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _first_end(text: bytes) -> int:
    """Where the first line ends."""
    ends = [at for at in (text.find(b"\n"), text.find(b"\r")) if at >= 0]
    return min(ends, default=len(text))


def _lines(text: bytes, begin: int, end: int) -> Iterator[_Line]:
    for found in _LINE.finditer(text, begin, end):
        yield found.start(), found[0][:LINE_BYTES].decode(errors="replace")


def _compiled(pattern: str) -> "re.Pattern[str] | None":
    """None if this interpreter, unlike the one that the job was submitted with, does not take it."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise _TooSlow in a search that takes too long: the engine looks for signals now and then."""
    active = True

    def give_up(signum: int, frame: object) -> None:
        if active:
            raise _TooSlow

    signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_S)
    try:
        yield
    finally:
        active = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
