"""Makes calls that may never return, on threads that nothing has to wait for."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Make the call on a thread of its own, and return a future of its result.

    It is a daemon thread and not an executor's, because the interpreter waits for an executor's threads at its end, and
    one stuck driver call would keep the process from stopping.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, failure = None, None
        try:
            value = call()
        except Exception as error:  # raised where the result is awaited
            failure = error
            log.debug("event=call-failed", exc_info=True)
        # The loop is closed if the process stops meanwhile, and then the result is not needed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=run, name="apart", daemon=True).start()
    return result
