"""What a job's output is looked through for, and what follows from a line that is found there.

A node looks while the job prints, and says which rule matched; what that means, `ebbtide_core.lifecycle.log_matches`
decides.
"""

import re
from enum import Enum
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.frozen import frozen

MAX_RULES: Final = limits.MAX_LOG_RULES
"""Of one job; the administrator has as many besides."""
MAX_PATTERN_LENGTH: Final = 256
MAX_LINE_LENGTH: Final = 200
"""Characters of a line that are told."""


class LogAction(Enum):
    """What follows from a line; one that an `IGNORE` matches counts for no other rule."""

    IGNORE = "ignore"
    NOTIFY = "notify"
    NO_RETRY = "no-retry"
    EXCLUDE_GPU = "exclude-gpu"
    EXCLUDE_NODE = "exclude-node"


@frozen
class LogRule:
    """Lines that ``pattern``, a regular expression, is found in."""

    pattern: str
    action: LogAction


@frozen
class LogMatch:
    """A line that a rule was found in; ``gpus`` are the UUIDs of those of whoever printed it."""

    pattern: str
    action: LogAction
    line: str
    gpus: tuple[str, ...] = ()


OUT_OF_MEMORY: Final = (
    r"torch\.(cuda\.)?OutOfMemoryError|CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)
"""Of PyTorch (its own, and CUDA's error passed on), the driver, cuBLAS, cuDNN, and XLA."""
BROKEN_MEMORY: Final = r"(?i)uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"

DEFAULT_RULES: Final = (
    LogRule(OUT_OF_MEMORY, LogAction.NO_RETRY),
    LogRule(BROKEN_MEMORY, LogAction.EXCLUDE_GPU),
)
"""What holds where nobody says otherwise."""


def parse_rule(text: str) -> LogRule:
    """Read ``REGEX=ACTION``; ``ValueError`` says what is wrong with it."""
    pattern, separator, action = text.rpartition("=")
    if not separator:
        raise ValueError(f"{text[:40]!r} is not of the form REGEX=ACTION")
    if action not in [known.value for known in LogAction]:
        raise ValueError(f"{action[:40]!r} is none of {', '.join(known.value for known in LogAction)}")
    return checked(LogRule(pattern, LogAction(action)))


def checked(rule: LogRule) -> LogRule:
    """The same rule; ``ValueError`` if its pattern is not one."""
    if not rule.pattern or len(rule.pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"a pattern has 1 to {MAX_PATTERN_LENGTH} characters, not {len(rule.pattern)}")
    try:
        compiled = re.compile(rule.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{rule.pattern[:40]!r} is not a regular expression: {error}") from None
    if compiled.search(""):
        raise ValueError(f"{rule.pattern[:40]!r} is found in an empty line, and so in every one")
    return rule
