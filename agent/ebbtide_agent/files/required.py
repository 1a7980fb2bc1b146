"""Paths that a job requires on its node: data sets that only some nodes have."""

import logging
import time
from collections.abc import Iterable
from typing import Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.files.path_checks import is_there
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.asking import ask

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""For all paths together; a mount that does not answer by then is taken for one that is not there."""
_LEAST_S: Final = 0.1


async def missing(paths: Iterable[str], account: Account | None = None) -> str:
    """Why the first of ``paths`` that is not here for the account is not, in words; empty if all are."""
    deadline = time.monotonic() + ANSWER_S
    for path in paths:
        within_s = max(_LEAST_S, deadline - time.monotonic())
        there = await ask(is_there, path, account=account, within_s=within_s)
        if isinstance(there, Unknown):
            log.warning("event=path-silent path=%r reason=%r", path, there.reason)
            return f"{path} does not answer (--require-path)"
        if not there:
            return f"{path} does not exist here (--require-path)"
    return ""
