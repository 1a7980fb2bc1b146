"""Paths that a job requires on its node: data sets that only some nodes have."""

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import Final

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""A mount that does not answer for so long is taken for one that is not there."""


async def missing(paths: Iterable[str]) -> str:
    """Why the first of ``paths`` that is not here is not, in words; empty if all are."""
    for path in paths:
        try:
            async with asyncio.timeout(ANSWER_S):
                there = await asyncio.to_thread(os.path.exists, path)
        except TimeoutError:
            log.warning("event=path-silent path=%r", path)
            return f"{path} does not answer (--require-path)"
        if not there:
            return f"{path} does not exist here (--require-path)"
    return ""
