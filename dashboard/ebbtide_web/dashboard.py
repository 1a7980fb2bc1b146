"""The state of one dashboard: how it is reached, who is logged in, and the master that it asks for them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide_protos.v1 import user_pb2

from ebbtide_web.access.guard import Origin
from ebbtide_web.access.sessions import OVER, SESSION_S, Failures, Links, NoRoomError, Session, WebSessions
from ebbtide_web.board.feed import SharedFeed
from ebbtide_web.reach import AwayError, Master, MasterRefusedError, Opener

CHECKED_S: Final = 3.0
"""Seconds after which the master is asked again whether a session's token still holds."""
REVOKED_S: Final = 2.0
"""Seconds that the tokens of sessions have for being revoked when the dashboard stops."""

LABEL: Final = "dashboard"


@dataclass(slots=True)
class DashboardSettings:
    """How a dashboard is reached, and as whom it asks for what everybody may see."""

    opener: Opener
    token: Callable[[], str]
    """The token of the account that runs this: the feed's, and that of those who come by a link."""
    links: Links
    origin: Origin
    replay: tuple[str, ...]
    """The command that runs ``ebb replay``."""
    base: str = ""
    """The path below which all pages are, such as ``/ebb``, for a proxy that serves more; empty without one."""
    cluster: str = ""
    """What the header calls the cluster."""


@dataclass(slots=True)
class Dashboard:
    """The state of one dashboard."""

    settings: DashboardSettings
    master: Master
    feed: SharedFeed
    sessions: WebSessions = field(default_factory=WebSessions)
    failures: Failures = field(default_factory=Failures)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """What runs for as long as the dashboard does; if one of them ends, that is a fault of it."""

    @property
    def cookie(self) -> str:
        """The name of the session's cookie: browsers keep one with such a beginning only as it is meant to be set."""
        if not self.settings.origin.tls:
            return "ebbtide"
        return "__Secure-ebbtide" if self.settings.base else "__Host-ebbtide"

    # --- sessions ---

    def session_of(self, cookies: Mapping[str, str]) -> Session | None:
        """Return the session of a browser; None if it has none, or if that is over."""
        return self.sessions.find(cookies.get(self.cookie, ""))

    async def log_in(self, token: str) -> tuple[Session, str]:
        """Open a session with a token of its own, made with ``token``; return it and the text of its cookie.

        Raises `AwayError`, `MasterRefusedError` and `NoRoomError`.
        """
        request = user_pb2.CreateTokenRequest(lifetime_s=SESSION_S, label=LABEL)
        made = await self.master.call("CreateToken", request, token)
        who = await self.master.call("WhoAmI", user_pb2.WhoAmIRequest(), made.text)
        now = time.monotonic()
        session = Session(who.user.name, who.user.role, made.text, made.token.id, now + SESSION_S, checked=now)
        try:
            cookie, ended = self.sessions.open(session)
        except NoRoomError:
            await self.revoke(session)
            raise
        if ended is not None:
            await self.revoke(ended)
        return session, cookie

    async def revoke(self, session: Session) -> None:
        """End a session, and revoke its token; if the master is away, the token ends by itself."""
        session.end("you have logged out")
        with suppress(AwayError, MasterRefusedError):
            request = user_pb2.RevokeTokenRequest(id=session.token_id)
            await self.master.call("RevokeToken", request, session.token)

    async def call(self, session: Session, method: str, request: Any) -> Any:
        """Call the master as the person who asks; end the session if the master does not know them any more."""
        try:
            return await self.master.call(method, request, session.token)
        except MasterRefusedError as error:
            if error.status == 401:
                session.end(OVER)
            raise

    async def check(self, session: Session) -> None:
        """End the session if the master does not accept its token any more."""
        if time.monotonic() - session.checked < CHECKED_S:
            return
        session.checked = time.monotonic()
        try:
            who = await self.master.call("WhoAmI", user_pb2.WhoAmIRequest(), session.token)
            session.role = who.user.role
        except MasterRefusedError as error:
            if error.status == 401:
                session.end(OVER)
        except AwayError:
            pass  # what is shown is what was shown before; nothing can be changed meanwhile

    async def watch(self) -> None:
        """Check, again and again, the sessions that have a page open, so that no stream outlives its token."""
        while True:
            await asyncio.sleep(CHECKED_S)
            self.sessions.expire()
            for session in self.sessions.all():
                if session.streams:
                    await self.check(session)

    async def end_sessions(self) -> None:
        """End all sessions, and revoke their tokens."""
        ended = self.sessions.all()
        for session in ended:
            session.end("the dashboard has been stopped")
        with suppress(TimeoutError):
            async with asyncio.timeout(REVOKED_S):
                await asyncio.gather(*(self.revoke(session) for session in ended))
