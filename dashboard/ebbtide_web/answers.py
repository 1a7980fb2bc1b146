"""Reads what requests bring, and makes the replies: pages from templates, JSON that is safe to show, and refusals."""

import json
from pathlib import Path
from typing import Any, Final

import jinja2
from ebbtide_protos.quantities import printable
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ebbtide_web.access.sessions import Session
from ebbtide_web.board.shared_page import encoded

HERE: Final = Path(__file__).parent
_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=lambda value: printable(value) if type(value) is str else value,
)


class BadInputError(Exception):
    """What was asked for makes no sense; the message names the field and the limit."""


class Templates:
    """Makes pages. Whatever is put into one is text, and harmless."""

    def __init__(self, base: str = "", cluster: str = "") -> None:
        self._base = base
        self._cluster = cluster

    def text(self, template: str, session: Session | None, **values: Any) -> str:
        """Return the text of a page."""
        found = _ENVIRONMENT.get_template(template)
        return found.render(base=self._base, cluster=self._cluster, session=session, **values)

    def page(self, template: str, session: Session | None, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a reply with a page."""
        return HTMLResponse(self.text(template, session, **values), status)


async def body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request has. Raises `BadInputError`."""
    try:
        found = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise BadInputError("the body is not JSON") from None
    if not isinstance(found, dict):
        raise BadInputError("the body is not an object")
    return found


def answer(value: dict[str, Any], status: int = 200) -> Response:
    """Return a reply with JSON that is safe to show."""
    return Response(encoded(value), status, media_type="application/json")


def problem(words: str, status: int) -> Response:
    """Return a reply that says what is wrong."""
    return answer({"error": words}, status)
