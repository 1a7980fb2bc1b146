"""The page where people log in, by the code of a link or by a token, and how they log out."""

import logging
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide_web.access.sessions import SESSION_S, NoRoomError, Session
from ebbtide_web.answers import answer, body, problem
from ebbtide_web.pages.page import Page, PageRoute
from ebbtide_web.reach import AwayError, MasterRefusedError

log = logging.getLogger(__name__)


class LoginPage(Page):
    """Opens and ends sessions."""

    def routes(self) -> Sequence[PageRoute | Route]:
        """Return the routes of the page."""
        return (
            Route("/login", self.login, methods=["GET"]),
            Route("/login/code", self.log_in_by_code, methods=["POST"]),
            Route("/login/token", self.log_in_by_token, methods=["POST"]),
            PageRoute("/me", self.me),
            PageRoute("/logout", self.log_out, changes=True),
        )

    async def login(self, request: Request) -> Response:
        """Show where to log in."""
        if self._dashboard.session_of(request.cookies) is not None:
            return RedirectResponse(f"{self._dashboard.settings.base}/", 303)
        return self._templates.page("login.html", None)

    async def log_in_by_code(self, request: Request) -> Response:
        """Open a session for whoever has the code of a link."""
        return await self._log_in(request, "code")

    async def log_in_by_token(self, request: Request) -> Response:
        """Open a session for whoever has a token."""
        return await self._log_in(request, "token")

    async def _log_in(self, request: Request, kind: str) -> Response:
        dashboard, address = self._dashboard, _address(request, proxied=self._dashboard.settings.origin.proxied)
        locked = dashboard.failures.too_many(address)
        if locked and kind == "token":
            return problem("too many attempts to log in: wait a minute", 429)
        given = (await body(request)).get(kind)
        text = given.strip() if isinstance(given, str) and len(given) < 1000 else ""
        if kind == "code" and not dashboard.settings.links.use(text):  # nobody guesses 128 bits: it is always tried
            if locked:
                return problem("too many attempts to log in: wait a minute", 429)
            dashboard.failures.add(address)
            return problem("the link is not valid any more: it logs in once, within a minute", 401)
        if not (text.isascii() and text.isprintable()):  # a header cannot have it
            dashboard.failures.add(address)
            return problem("this is not a token", 400)
        try:
            session, cookie = await dashboard.log_in(dashboard.settings.token() if kind == "code" else text)
        except MasterRefusedError as error:
            dashboard.failures.add(address)
            return problem(str(error), error.status)
        except AwayError as error:
            return problem(f"the master does not answer: {error}", 503)
        except NoRoomError as error:
            dashboard.failures.add(address)
            return problem(str(error), 400)
        log.info("user=%s logged in by a %s", session.user, "link" if kind == "code" else kind)
        response = answer({"user": session.user})
        response.set_cookie(
            dashboard.cookie,
            cookie,
            max_age=int(SESSION_S),
            path=dashboard.settings.base or "/",
            secure=dashboard.settings.origin.tls,
            httponly=True,
            samesite="strict",
        )
        return response

    async def log_out(self, request: Request, session: Session) -> Response:
        """End the session, and revoke its token."""
        await self._dashboard.revoke(session)
        response = answer({})
        settings = self._dashboard.settings
        response.delete_cookie(self._dashboard.cookie, path=settings.base or "/", secure=settings.origin.tls)
        return response

    async def me(self, request: Request, session: Session) -> Response:
        """Say who is logged in; a page asks whether it still is."""
        return answer({"user": session.user, "role": session.role})


def _address(request: Request, *, proxied: bool) -> str:
    """Return where a request comes from, for counting failed logins only: nothing else believes a forwarded header.

    All that comes by a proxy's socket would count as one otherwise, and five wrong tokens keep everybody out.
    """
    if request.client is not None:
        return request.client.host
    return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()[:64] if proxied else ""
