"""Search an attempt's output for the job's and the administrator's patterns.

The search reads the log file, so the job never waits for it, however much it prints. Output that comes too fast is
skipped, and a pattern that takes too long is given up.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.contract.intent import LogPattern
from ebbtide_agent.supervisor.status import MatchedLine

LINE_BYTES = 4096
"""The part of a line that is searched; progress bars write lines without end."""
WINDOW_BYTES = 512 * 1024
"""The part of a file that is searched at a time."""
MOST_BEHIND_BYTES = 8 * WINDOW_BYTES
"""When more than this is left to search, all but the last window is skipped."""
END_BYTES = 64 * 1024
"""A failure is put down only to lines in this last part of a log: earlier ones did not cause it."""
REPORTED_CHARACTERS = 200
_CPU_S = 0.1
"""CPU seconds that one pattern may take to search a window; a plain pattern takes a tenth of that."""
_NOTIFY = "LOG_ACTION_NOTIFY"
_NO_RETRY = "LOG_ACTION_NO_RETRY"
_IGNORE = "LOG_ACTION_IGNORE"
_LINE = re.compile(rb"[^\r\n]+")

_Line = tuple[int, str]  # its offset in the file, in bytes, and its text


class _TooSlow(Exception):
    """A pattern takes more than its CPU time."""


@dataclass(slots=True, eq=False)
class _SearchedLog:
    path: Path
    gpus: tuple[str, ...]  # of the processes that print into it
    offset: int = 0  # where the next line to be searched begins
    size: int = 0
    skips: bool = False  # whether the text at `offset` is the rest of a line that is skipped


@dataclass(slots=True, eq=False)
class _Rule:
    regex: "re.Pattern[str]"
    rule: LogPattern
    last: tuple[_SearchedLog, int, MatchedLine] | None = (
        None  # the last match, for a rule that counts only near the end
    )


class LogRules:
    """Searches for rules; `matches` holds the rules that were found, each once."""

    def __init__(self, rules: Sequence[LogPattern], files: Sequence[tuple[Path, tuple[str, ...]]]) -> None:
        """`files` are the log files, each with the UUIDs of the GPUs of the processes that print into it."""
        self._given = rules
        self._rules: list[_Rule] = []
        self._ignored: list[_Rule] = []
        self._files = [_SearchedLog(path, gpus) for path, gpus in files]
        self.matches: list[MatchedLine] = []

    def look(self, *, final: bool = False) -> bool:
        """Search what was printed since; return whether there was anything. The final look takes all of the window."""
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
        """Compile the patterns; this waits for the first look, so as not to delay the job's start."""
        given, self._given = self._given, ()
        compiled = [_Rule(regex, rule) for rule in given if (regex := _compiled(rule.pattern)) is not None]
        self._rules = [rule for rule in compiled if rule.rule.action != _IGNORE]
        self._ignored = [rule for rule in compiled if rule.rule.action == _IGNORE]

    def _look_at(self, file: _SearchedLog, final: bool) -> bool:
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

    def _search(self, file: _SearchedLog, lines: list[_Line]) -> None:
        if not lines:
            return
        for rule in list(self._rules):
            try:
                with _time_limit():
                    found = self._find(rule, lines)
            except _TooSlow:
                self._rules.remove(rule)
                note = "(not looked for any more: it takes too long)"
                self.matches.append(MatchedLine(rule.rule.pattern, _NOTIFY, note, []))
                continue
            if found is None:
                continue
            offset, line = found
            match = MatchedLine(
                rule.rule.pattern, rule.rule.action, line.strip()[:REPORTED_CHARACTERS], list(file.gpus)
            )
            if rule.rule.action == _NO_RETRY:
                rule.last = file, offset, match
            else:
                self._rules.remove(rule)
                self.matches.append(match)

    def _find(self, rule: _Rule, lines: list[_Line]) -> _Line | None:
        """Return the line to report: the first match, or the last for a rule that counts only near the end."""
        for line in reversed(lines) if rule.rule.action == _NO_RETRY else lines:
            if rule.regex.search(line[1]) and not any(ignored.regex.search(line[1]) for ignored in self._ignored):
                return line
        return None


def _read(file: _SearchedLog, final: bool) -> bytes:
    """Return the next window of the file; empty if there is nothing new, or the file cannot be read."""
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
    """Return how many bytes of the text are finished lines."""
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _first_end(text: bytes) -> int:
    ends = [at for at in (text.find(b"\n"), text.find(b"\r")) if at >= 0]
    return min(ends, default=len(text))


def _lines(text: bytes, begin: int, end: int) -> Iterator[_Line]:
    for found in _LINE.finditer(text, begin, end):
        yield found.start(), found[0][:LINE_BYTES].decode(errors="replace")


def _compiled(pattern: str) -> "re.Pattern[str] | None":
    """Compile a pattern; return None if this interpreter, unlike the one at submit, does not accept it."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise _TooSlow in a search that takes too long; the regex engine checks for signals now and then."""
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
