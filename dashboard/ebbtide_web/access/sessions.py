"""Knows who is logged in: sessions by the hash of their cookie, one-time codes of links, and failed attempts."""

import asyncio
import hashlib
import hmac
import html
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CODE_S: Final = 60.0
"""Seconds for which a link is valid."""
SESSION_S: Final = 12 * 3600.0
MOST_SESSIONS: Final = 500
MOST_OF_A_USER: Final = 25
"""Sessions of one user; whoever opens one more ends their oldest."""
MOST_STREAMS: Final = 12
"""Streams of one session: a tab has one, the page of a job two."""
OVER: Final = "your session is over: its token does not hold any more"
FAILURES: Final = 5
"""Failed logins from one address in `FAILURES_S`; after that only the code of a link logs in there."""
MOST_ADDRESSES: Final = 1000
"""Addresses whose failures are counted; beyond that all others count as one."""
FAILURES_S: Final = 60.0
_CODE: Final = re.compile(r"[A-Za-z0-9_-]{22}")


class NoRoomError(Exception):
    """There is no room for another session or stream; the message says what to do."""


@dataclass(slots=True, eq=False)
class Session:
    """Who is logged in. ``token`` was made for this session, and ends with it."""

    user: str
    role: str
    token: str
    token_id: str
    ends: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    streams: int = 0
    checked: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""

    def proves(self, csrf: str) -> bool:
        """Whether ``csrf`` is what the pages of this session were given."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode())

    def end(self, why: str) -> None:
        """End the session, and all its streams."""
        self.why = self.why or why
        self.ended.set()

    def check_room(self) -> None:
        """Raise `NoRoomError` if the session has as many streams as it may."""
        if self.streams >= MOST_STREAMS:
            raise NoRoomError(f"{MOST_STREAMS} pages of this session are open already: close one")

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count one more stream for as long as the block lasts."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1


class WebSessions:
    """All sessions of this dashboard. They are in memory only, and end with it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._by_hash: dict[bytes, Session] = {}

    def open(self, session: Session) -> tuple[str, Session | None]:
        """Keep a session; return the text of its cookie, which is kept nowhere, and the session that it ends, if any.

        Raises `NoRoomError`.
        """
        self.expire()
        own = [(key, old) for key, old in self._by_hash.items() if old.user == session.user]  # the oldest first
        ended = None
        if len(own) >= MOST_OF_A_USER:
            key, ended = own[0]
            self._drop(key, f"you have logged in {MOST_OF_A_USER} times since")
        elif len(self._by_hash) >= MOST_SESSIONS:
            raise NoRoomError(f"{MOST_SESSIONS} sessions are open already")
        cookie = secrets.token_urlsafe(32)
        self._by_hash[_digest(cookie)] = session
        return cookie, ended

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if there is none, or if it is over."""
        key = _digest(cookie)
        session = self._by_hash.get(key)
        if session is None:
            return None
        if session.ends <= self._now():
            self._drop(key, "the session is over")
        elif session.ended.is_set():
            self._by_hash.pop(key, None)
        else:
            return session
        return None

    def all(self) -> list[Session]:
        """Return all sessions that are not over."""
        return [session for session in self._by_hash.values() if not session.ended.is_set()]

    def expire(self) -> None:
        """End what is over by now."""
        for key, session in list(self._by_hash.items()):
            if session.ends <= self._now():
                self._drop(key, "the session is over")
            elif session.ended.is_set():
                self._by_hash.pop(key, None)

    def _drop(self, key: bytes, why: str) -> None:
        self._by_hash.pop(key).end(why)


class Links:
    """One-time codes: files in a directory that only this account can write to, named by the hash of the code.

    So whoever can write there can make a link, and nobody else, and a code is used up by removing its file.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def make(self) -> str:
        """Make a code of 128 bits."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        code = secrets.token_urlsafe(16)
        os.close(os.open(self._path(code), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        return code

    def page(self, link: str) -> Path:
        """Write a page that leads to ``link``, and that only this account can read; return its path.

        A browser is opened with this, because every account can read its command line, and the code of a link there.
        """
        path = self._folder / f"{secrets.token_hex(16)}.html"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(link)}">')
        return path

    def use(self, code: str) -> bool:
        """Use up a code; return whether it was valid."""
        if not _CODE.fullmatch(code):
            return False
        path = self._path(code)
        try:
            made = path.stat(follow_symlinks=False).st_mtime
            path.unlink()  # whoever removes it has used it: nobody else can
        except OSError:
            return False
        self._clear()
        return 0.0 <= self._now() - made + 1.0 <= CODE_S + 1.0

    def _path(self, code: str) -> Path:
        return self._folder / hashlib.sha256(code.encode()).hexdigest()

    def _clear(self) -> None:
        """Remove the codes that were not used in time, and the pages that led to them."""
        for path in self._folder.iterdir():
            with suppress(OSError):
                if self._now() - path.stat(follow_symlinks=False).st_mtime > CODE_S:
                    path.unlink()


class Failures:
    """Counts failed logins, so that nobody tries many."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at: dict[str, deque[float]] = {}
        """The last ones by address, as many as count."""

    def too_many(self, address: str) -> bool:
        """Whether no token from ``address`` is tried now."""
        since = self._now() - FAILURES_S
        for known, times in list(self._at.items()):
            while times and times[0] <= since:
                times.popleft()
            if not times:
                del self._at[known]
        return len(self._at.get(self._key(address), ())) >= FAILURES

    def add(self, address: str) -> None:
        """Note a failed login."""
        self._at.setdefault(self._key(address), deque(maxlen=FAILURES)).append(self._now())

    def _key(self, address: str) -> str:
        return address if address in self._at or len(self._at) < MOST_ADDRESSES else ""


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
