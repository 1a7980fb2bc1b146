"""Paths that a job requires on its node: data sets that only some nodes have."""

import asyncio
import logging
import os
from collections.abc import Iterable
from functools import partial
from typing import Final

from ebbtide_agent.accounts import Account
from ebbtide_agent.apart import apart
from ebbtide_agent.rights import with_rights

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""A mount that does not answer for so long is taken for one that is not there."""


async def missing(paths: Iterable[str], account: Account | None = None) -> str:
    """Why the first of ``paths`` that is not here for the account is not, in words; empty if all are."""
    for path in paths:
        try:
            async with asyncio.timeout(ANSWER_S):
                there = await apart(partial(with_rights, account, partial(os.path.exists, path)))
        except TimeoutError:
            log.warning("event=path-silent path=%r", path)
            return f"{path} does not answer (--require-path)"
        if not there:
            return f"{path} does not exist here (--require-path)"
    return ""
