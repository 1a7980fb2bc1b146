"""Reads a table of the configuration file, and refuses unknown keys and values of a wrong type."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from ebbtide_core.model.spelling import choices
from ebbtide_protos.quantities import parse_duration, parse_size

Value = TypeVar("Value")

NAMES_OF_KINDS: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a table",
    list: "a list",
}
"""What each kind of value is called in errors."""


class ConfigError(Exception):
    """The file cannot be used; the message names the file, the key, and the values that are allowed there."""


class Table:
    """A table: `take` and the other methods read the known keys, and then `finish` refuses the keys that are left."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._left = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """Return the value of ``key``, which must be a ``kind``, or ``default`` if the key is missing."""
        self._known.append(key)
        if key not in self._left:
            return default
        value = self._left.pop(key)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(key, f"{value!r} is not {NAMES_OF_KINDS[kind]}")
        return value

    def take_duration(self, key: str, default_s: float) -> float:
        """Return the duration ``key`` in seconds, or ``default_s`` if the key is missing."""
        return self._parsed(key, parse_duration, default_s)

    def take_size(self, key: str, default_bytes: int) -> int:
        """Return the size ``key`` in bytes, or ``default_bytes`` if the key is missing."""
        return self._parsed(key, parse_size, default_bytes)

    def tables(self, key: str) -> Iterator[tuple[str, "Table"]]:
        """Yield the tables below ``key``, ``[key.name]``, with their names."""
        for name, values in self.take(key, dict, {}).items():
            if type(values) is not dict:
                raise self.error(f"{key}.{name}", f"{values!r} is not a table")
            yield name, type(self)(f"{self.where}{key}.{name}.", values)

    def table(self, key: str) -> "Table":
        """Return the table ``[key]``, which is empty if it is missing."""
        return type(self)(f"{self.where}{key}.", self.take(key, dict, {}))

    def finish(self) -> None:
        """Raise `ConfigError` if a key is left that was not taken."""
        for key in self._left:
            raise self.error(key, f"is not known here: there are {choices(key, self._known)}")

    def _parsed(self, key: str, parse: Callable[[str], Value], default: Value) -> Value:
        text = self.take(key, str, "")
        try:
            return parse(text) if text else default
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def error(self, key: str, message: str) -> ConfigError:
        """Return a `ConfigError` about ``key``, to be raised."""
        return ConfigError(f"{self.where}{key}: {message}")
