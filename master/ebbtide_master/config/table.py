"""A table of the file, which wants every key of it to be known, and of the right kind."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ebbtide_protos.quantities import parse_duration, parse_size

Value = TypeVar("Value")

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a table",
    list: "a list",
}


class ConfigError(Exception):
    """The file cannot be used; the message names the file, the key and what may stand there."""


class Table:
    """Take what is known with `take` and `tables`, then call `finish`: whatever is left over is a mistake."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._left = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """The value of ``key``, which is a ``kind``; ``default`` if it is not there."""
        self._known.append(key)
        if key not in self._left:
            return default
        value = self._left.pop(key)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(key, f"{value!r} is not {_NAMES[kind]}")
        return value

    def take_duration(self, key: str, default_s: float) -> float:
        """The seconds that ``key`` amounts to; ``default_s`` if it is not there."""
        return self._parsed(key, parse_duration, default_s)

    def take_size(self, key: str, default_bytes: int) -> int:
        """The bytes that ``key`` amounts to; ``default_bytes`` if it is not there."""
        return self._parsed(key, parse_size, default_bytes)

    def tables(self, key: str) -> Iterator[tuple[str, "Table"]]:
        """The tables below ``key`` by name: ``[key.name]``."""
        for name, values in self.take(key, dict, {}).items():
            if type(values) is not dict:
                raise self.error(f"{key}.{name}", f"{values!r} is not a table")
            yield name, Table(f"{self.where}{key}.{name}.", values)

    def table(self, key: str) -> "Table":
        """The table ``[key]``, empty if it is not there."""
        return Table(f"{self.where}{key}.", self.take(key, dict, {}))

    def finish(self) -> None:
        """Refuse what nobody took."""
        for key in self._left:
            raise self.error(key, f"is not known here: there are {', '.join(self._known)}")

    def _parsed(self, key: str, parse: Callable[[str], Value], default: Value) -> Value:
        text = self.take(key, str, "")
        try:
            return parse(text) if text else default
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def error(self, key: str, message: str) -> ConfigError:
        """The mistake at ``key``, to be raised."""
        return ConfigError(f"{self.where}{key}: {message}")
