"""Every method that clients can call has one handler, and no handler is of no method."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide_master.api.servicer import METHODS, client_services, servicer

from tests.master.methods import all_methods
from tests.master.world import a_master


def handlers(**others: Any) -> list[object]:
    """A service for each method, but for those that ``others`` say something else of; of None there is none."""

    async def call(request: Any, context: Any) -> None:
        pass

    async def stream(request: Any, context: Any) -> AsyncIterator[None]:
        yield None

    found = {name: stream if method.server_streaming else call for name, method in METHODS.items()} | others
    return [SimpleNamespace(**{name: handler}) for name, handler in found.items() if handler is not None]


async def test_every_method_of_the_protocol_has_a_handler(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        served = servicer(client_services(master.service.context, master.service.reloading))
    names = {method.name for method in all_methods() if "/ebbtide.v1.ClientService/" in method.path}
    assert names == set(vars(served))
    assert len(names) > 40


def test_a_method_without_a_handler_is_named() -> None:
    assert servicer(handlers())
    with pytest.raises(LookupError, match="no service has Cancel, Submit"):
        servicer(handlers(Submit=None, Cancel=None))


@pytest.mark.parametrize("name", ["Submit", "Sumbit"])
def test_a_second_handler_and_one_of_no_method_are_refused(name: str) -> None:
    with pytest.raises(LookupError, match=f"{name}: there is no such method, or it has a handler"):
        servicer([*handlers(), SimpleNamespace(**{name: print})])


def test_a_call_that_is_answered_as_a_stream_is_refused() -> None:
    async def stream(request: Any, context: Any) -> AsyncIterator[None]:
        yield None

    with pytest.raises(LookupError, match="Submit: only one of handler and method is a stream"):
        servicer(handlers(Submit=stream))
