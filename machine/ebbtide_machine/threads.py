"""Makes calls that may never return, on threads that nothing has to wait for."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def on_daemon_thread(call: Callable[[], T], name: str = "apart") -> asyncio.Future[T]:
    """Make the call on a thread of its own, and return a future of its result or error.

    It is a daemon thread and not an executor's, because the interpreter waits for an executor's threads at its end, and
    one call that is stuck would keep the process from stopping.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def deliver(value: Any, error: Exception | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)

    def run() -> None:
        value, failure = None, None
        try:
            value = call()
        except Exception as error:  # raised where the result is awaited
            failure = error
            log.debug("event=call-failed", exc_info=True)
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result any more
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
