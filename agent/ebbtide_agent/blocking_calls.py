"""Calls that may never return, made where nothing has to wait for them."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """The result of the call, made on a thread of its own.

    A daemon thread and no executor: the interpreter waits for an executor's threads when it ends, and one stuck driver
    call would keep the process from stopping.
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
        except Exception as error:  # it is raised where the result is awaited
            failure = error
            log.debug("event=call-failed", exc_info=True)
        # The loop is closed if the process stops meanwhile; then nobody asks for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=run, name="apart", daemon=True).start()
    return result
