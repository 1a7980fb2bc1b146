"""Define the options of successive halving, which lets only the best tasks of an array run to their end."""

from typing import Any, Final

import click
from ebbtide_core.model.spec.halving import Asha, Mode
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.topic import Given, Option

TITLE: Final = "Arrays and sweeps"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--asha",
        metavar="SETTINGS",
        help=(
            "Stop the worse tasks early by successive halving over what they report: "
            "min-steps=100,max-steps=1600 and, if needed, metric=loss,mode=min,eta=4."
        ),
    ),
)
KEYS: Final = ("metric", "mode", "eta", "min-steps", "max-steps")


def fields(given: Given) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that these options give."""
    return {"asha": None if given["asha"] is None else _asha(given["asha"])}


def _asha(text: str) -> Asha:
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key not in KEYS or not equals:
            raise _failure(f"{abbreviated(part)!r} is none of {', '.join(f'{known}=' for known in KEYS)}")
        values[key.replace("-", "_")] = _value(key, value)
    for key in ("min-steps", "max-steps"):
        if key.replace("-", "_") not in values:
            raise _failure(f"{key}= is needed")
    return Asha(**values)


def _value(key: str, text: str) -> Any:
    match key:
        case "metric":
            return text
        case "mode":
            if text in {mode.value for mode in Mode}:
                return Mode(text)
            raise _failure(f"mode is min or max, not {abbreviated(text)!r}")
        case _:
            if text.isascii() and text.isdigit() and len(text) <= 18:
                return int(text)
            raise _failure(f"{key} takes a whole number, not {abbreviated(text)!r}")


def _failure(message: str) -> Failure:
    return Failure(f"submit: --asha: {message}", USAGE)
