"""Check the paths that a job requires on its node, such as data sets that only some nodes have."""

import logging
import time
from collections.abc import Iterable
from typing import Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.files.path_checks import is_there
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""Seconds for all paths together; a mount that does not answer in this time counts as missing."""
_LEAST_S: Final = 0.1


async def missing(paths: Iterable[str], account: Account | None = None) -> str:
    """Return why the first of the paths that is missing for the account is missing; empty if all are there."""
    deadline = time.monotonic() + ANSWER_S
    for path in paths:
        within_s = max(_LEAST_S, deadline - time.monotonic())
        there = await ask(is_there, path, account=account, within_s=within_s)
        if isinstance(there, NoAnswer):
            log.warning("event=path-silent path=%r reason=%r", path, there.reason)
            return f"{path} does not answer (--require-path)"
        if not there:
            return f"{path} does not exist here (--require-path)"
    return ""
