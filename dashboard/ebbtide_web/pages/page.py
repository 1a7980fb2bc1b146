"""What every page is made of: routes, and what it shows where the master refuses or does not answer."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import Templates
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.reach import AwayError, MasterRefusedError

Handler = Callable[[Request, Session], Awaitable[Response]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A route for those who are logged in. If it ``changes`` anything, a page of their session has to ask for it."""

    path: str
    handler: Handler
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A method of the master, what to send it, and how the page says that it was done."""

    method: str
    request: Any
    done: str


class NotShownError(Exception):
    """The master refuses what a page is about; a page of this ``title`` says so, and leads to the page ``back``."""

    def __init__(self, session: Session, title: str, refused: MasterRefusedError, back: str) -> None:
        super().__init__(str(refused))
        self.session = session
        self.title = title
        self.status = refused.status
        self.back = back


class Page(ABC):
    """One page. Each viewer is shown what the master shows them."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    @abstractmethod
    def routes(self) -> Sequence[PageRoute | Route]:
        """Return the routes of the page, and of what it reads and changes; a `Route` needs no session."""

    async def close(self) -> None:  # noqa: B027 (most pages have nothing to give up)
        """Give up what is being asked for the page."""

    async def _first_seen(
        self, session: Session, asked: Awaitable[Result], title: str, back: str = "queue"
    ) -> Result | None:
        """Return what the master says of what the page shows. Raises `NotShownError` if it refuses.

        Return None if the master is away: the page says so by itself, and goes on when it is back.
        """
        try:
            return await asked
        except MasterRefusedError as error:
            raise NotShownError(session, title, error, back) from None
        except AwayError:
            return None
