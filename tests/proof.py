"""Channels on which a test proves to be the account that runs the master, as `ebb` does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from ebbtide_cli.token_metadata import ProvenChannel


def proven(channel: Any, home: Path) -> Any:
    """The channel, of either kind, with the token that the master of ``home`` left there in each call."""
    return ProvenChannel(channel, (home / "token").read_text().strip())


@contextmanager
def reach(home: Path, address: str, options: Sequence[Any] = ()) -> Iterator[Any]:
    """A channel to the master of ``home``, for stubs."""
    with grpc.secure_channel(address, grpc.local_channel_credentials(), options=options) as channel:
        yield proven(channel, home)
