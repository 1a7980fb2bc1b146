"""Defines log rules: patterns that a job's output is searched for, and the action on a line that matches.

A node searches while the job prints, and reports which rule matched; `ebbtide_core.lifecycle.log_matches` decides what
follows.
"""

import re
from enum import Enum
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.frozen import frozen

MAX_RULES: Final = limits.MAX_LOG_RULES
"""Rules of one job; the administrator may have as many rules besides."""
MAX_PATTERN_LENGTH: Final = 256
MAX_LINE_LENGTH: Final = 200
"""Characters of a matched line that are reported."""


class LogAction(Enum):
    """What follows from a line that matches. A line that an `IGNORE` rule matches counts for no other rule."""

    IGNORE = "ignore"
    NOTIFY = "notify"
    NO_RETRY = "no-retry"
    EXCLUDE_GPU = "exclude-gpu"
    EXCLUDE_NODE = "exclude-node"


@frozen
class LogRule:
    """The ``action`` on lines in which ``pattern``, a regular expression, is found."""

    pattern: str
    action: LogAction


OUT_OF_MEMORY: Final = (
    r"torch\.(cuda\.)?OutOfMemoryError|CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)
"""Messages of PyTorch (its own, and CUDA's error passed on), the driver, cuBLAS, cuDNN, and XLA."""
BROKEN_MEMORY: Final = r"(?i)uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"

DEFAULT_RULES: Final = (
    LogRule(OUT_OF_MEMORY, LogAction.NO_RETRY),
    LogRule(BROKEN_MEMORY, LogAction.EXCLUDE_GPU),
)
"""The rules that apply to every job unless the administrator turns them off."""


def parse_rule(text: str) -> LogRule:
    """Parse ``REGEX=ACTION``; raise ``ValueError`` that says what is wrong with it."""
    pattern, separator, action = text.rpartition("=")
    if not separator:
        raise ValueError(f"{text[:40]!r} is not of the form REGEX=ACTION")
    if action not in [known.value for known in LogAction]:
        from ebbtide_core.model.spelling import none_of  # most actions are right

        raise ValueError(none_of(action, [known.value for known in LogAction]))
    return checked(LogRule(pattern, LogAction(action)))


def checked(rule: LogRule) -> LogRule:
    """Return ``rule``; raise ``ValueError`` if its pattern is not a regular expression, too long, or always found."""
    if not rule.pattern or len(rule.pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"a pattern has 1 to {MAX_PATTERN_LENGTH} characters, not {len(rule.pattern)}")
    try:
        compiled = re.compile(rule.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{rule.pattern[:40]!r} is not a regular expression: {error}") from None
    if compiled.search(""):
        raise ValueError(f"{rule.pattern[:40]!r} is found in an empty line, and so in every one")
    return rule
