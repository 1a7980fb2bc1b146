"""Stands before every page: which hosts and origins are served, how much may be sent, and what browsers may do."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES: Final = 32 * 1024
"""Bytes of the body of one request: a change of two hundred jobs fits in."""
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


STRICT: Final = (b"strict-transport-security", b"max-age=31536000")
"""It holds for all that a host serves, so that behind a proxy, which may serve more, it is for the proxy to say."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where browsers reach this dashboard: names of hosts, the port, and whether with TLS."""

    hosts: frozenset[str]
    port: int
    tls: bool = False
    proxied: bool = False
    """Whether it is a proxy that has this name and speaks TLS."""

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def usual_port(self) -> int:
        """The port that an address has if it names none."""
        return 443 if self.tls else 80

    def serves(self, host: str) -> bool:
        """Whether the Host header ``host`` is one of ours: a name that another site made lead here is not."""
        name, port = self._split(host)
        return port == str(self.port) and name in self.hosts

    def is_own(self, origin: str, host: str) -> bool:
        """Whether the Origin header says that a page of this very host asks."""
        scheme, _, place = origin.partition("://")
        return scheme.casefold() == self.scheme and self._split(place) == self._split(host)

    def _split(self, host: str) -> tuple[str, str]:
        """Return name and port; a proxy may name the usual port where browsers do not."""
        name, separator, port = host.casefold().rpartition(":")
        return (name, port) if separator and "]" not in port else (host.casefold(), str(self.usual_port))


class Guard:
    """Refuses what no page of ours asks for, before anything of it is read, and adds the headers for browsers."""

    def __init__(self, app: App, origin: Origin) -> None:
        self._app = app
        self._origin = origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message.get("headers", ())}
                kept = [(b"cache-control", b"no-store")] if b"cache-control" not in given else []
                kept += [STRICT] if self._origin.tls and not self._origin.proxied else []
                message["headers"] = [*message.get("headers", ()), *HEADERS, *kept]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if refused := self._refused(scope["method"], headers):
            await _refuse(guarded, *refused)
        else:
            await self._app(scope, receive, guarded)

    def _refused(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return the status and the words with which a request is refused; None if it is not."""
        host = headers.get("host", "")
        if not self._origin.serves(host):
            return 421, "this host is not served here"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "there are only GET and POST"
        if not self._origin.is_own(headers.get("origin", ""), host):
            return 403, "a page of another origin asked for this"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "a page of another site asked for this"
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return 415, "the body is not application/json"
        length = headers.get("content-length", "")
        says = length.isascii() and length.isdigit() and "transfer-encoding" not in headers  # which goes before it
        if not says or len(length) > 9 or int(length) > MOST_BYTES:
            return 413, f"the body has more than {MOST_BYTES} bytes, or does not say how many"
        return None


async def _refuse(send: Send, status: int, words: str) -> None:
    body = words.encode()
    kind = (b"content-type", b"text/plain; charset=utf-8")
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [kind, length]})
    await send({"type": "http.response.body", "body": body})
