"""Encodes and decodes the answer of a helper's process, which travels as one JSON value."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

LARGEST: Final = 16 * 1024 * 1024
"""Most bytes of an answer; a larger one counts as unknown."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """There is no answer, for this reason, and the caller is not to wait for one."""

    reason: str


def answer_of(task: Callable[..., Any], arguments: list[Any]) -> bytes:
    """Carry out the task, and return its result or its error as it travels."""
    content: dict[str, Any]
    try:
        content = {"value": task(*arguments)}
        return json.dumps(content).encode()
    except OSError as error:
        name = None if error.filename is None else str(error.filename)
        content = {"error": [error.errno, error.strerror or str(error), name]}
    except Exception as error:  # noqa: BLE001 - any other error is passed on, and makes the answer unknown
        content = {"unknown": f"{type(error).__name__}: {error}"[:1000]}
    return json.dumps(content).encode()


def tell(out: int, answer: bytes) -> None:
    """Write the whole answer to the descriptor. Raises OSError."""
    content = memoryview(answer)
    while content:
        content = content[os.write(out, content) :]


def read(answer: bytes) -> Any:
    """Return what the task returned, or NoAnswer. Raises the OSError that the task raised."""
    if not answer:
        return NoAnswer("its process ended without an answer")
    if len(answer) > LARGEST:
        return NoAnswer(f"more than {LARGEST} bytes")
    try:
        content = json.loads(answer)
        if "error" in content:
            code, words, name = content["error"]
            error = OSError(code, words, *([] if name is None else [name]))
        else:
            return content["value"] if "value" in content else NoAnswer(str(content["unknown"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return NoAnswer("its answer cannot be read")
    raise error
