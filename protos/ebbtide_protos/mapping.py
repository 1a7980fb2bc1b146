"""Maps records to messages of the wire and back, by the names and the types of their fields.

A field that a message leaves out always has the record's default, so a peer may leave out a field that it does not
know. A field without presence is left out when it is zero; if it has no default in the record, it is then zero there,
too. A nested record that equals its field's default is left out. `Wire` describes the exceptions. A type is examined
once, when the first of its records is mapped; a field that is missing on the wire, or has another type there, raises
TypeError then.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from enum import Enum
from functools import cached_property
from operator import attrgetter, not_
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ebbtide_core.model.spec_error import SpecError
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Record = TypeVar("Record")
Wired = TypeVar("Wired", bound=Message)
Convert = Callable[[Any], Any]

_LONGEST: Final = 40
_SCALARS: Final[Mapping[type, Collection[int]]] = {
    str: (FieldDescriptor.CPPTYPE_STRING,),
    bool: (FieldDescriptor.CPPTYPE_BOOL,),
    float: (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT),
    int: (
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    ),
}


class Wire(NamedTuple):
    """How a field is sent, if its own name and type do not say it."""

    name: str = ""  # its name on the wire; empty means the record's name
    option: str = ""  # its name in errors; empty means the option that is named like the field
    write: Convert | None = None  # what is sent for a value, with ``read`` as its inverse
    read: Convert | None = None
    zero: bool = False  # a zero there is a value, although the record has another default


def negated(name: str) -> Wire:
    """Return the wire of a flag that is sent as ``name`` with the opposite value."""
    return Wire(name=name, write=not_, read=not_)


Wires = Mapping[type, Mapping[str, Wire]]
"""The exceptions by the type of a record and the name of its field."""


class _Field(NamedTuple):
    """One field of a record, and its field on the wire; a conversion that is None changes nothing."""

    name: str
    wire: str
    number: int
    present: bool  # whether the message tells a zero from what is left out
    write: Convert | None
    read: Convert | None
    zero: bool


class Mapper(Generic[Record, Wired]):
    """Maps records of one type. ``option`` is the option that errors name, if the records are part of one.

    Fields in ``beside`` are not part of the message. If ``lenient``, an enum's value that this version does not know
    counts as left out; otherwise it raises `SpecError`, which names the option.
    """

    def __init__(
        self,
        record: type[Record],
        message: type[Wired],
        wires: Wires = types.MappingProxyType({}),
        *,
        option: str = "",
        beside: Collection[str] = (),
        lenient: bool = False,
    ) -> None:
        self._record, self._message, self._wires = record, message, wires
        self._option, self._beside, self._lenient = option, beside, lenient

    def to_message(self, record: Record) -> Wired:
        """Return the message for ``record``."""
        sent: dict[str, Any] = {}
        get, fields = self._writing
        for value, (wire, present, write) in zip(get(record), fields, strict=True):
            if write is not None and value is not None:
                value = write(value)
            if value or (present and value is not None):
                sent[wire] = value
        return self._message(**sent)

    def from_message(self, message: Wired) -> Record:
        """Return the record of ``message``. Raises `SpecError` for a value that has no meaning here."""
        return self._record(**self.values(message))

    def values(self, message: Wired) -> dict[str, Any]:
        """Return the record's fields that the message has, by name; fields that it leaves out have their defaults."""
        fields, zeros = self._reading
        found: dict[str, Any] = {}
        for descriptor, value in message.ListFields():
            known = fields.get(descriptor.number)
            if known is not None:
                name, read = known
                found[name] = value if read is None else read(value)
        for name, wire, read in zeros:
            if name not in found:
                value = getattr(message, wire)
                found[name] = value if read is None else read(value)
        return found

    @cached_property
    def _writing(self) -> tuple[Callable[[Record], tuple[Any, ...]], tuple[tuple[str, bool, Convert | None], ...]]:
        names = [field.name for field in self._fields]
        one = attrgetter(*names)
        get = one if len(names) > 1 else lambda record: (one(record),)
        return get, tuple((field.wire, field.present, field.write) for field in self._fields)

    @cached_property
    def _reading(self) -> tuple[dict[int, tuple[str, Convert | None]], tuple[tuple[str, str, Convert | None], ...]]:
        zeros = tuple((field.name, field.wire, field.read) for field in self._fields if field.zero)
        return {field.number: (field.name, field.read) for field in self._fields}, zeros

    @cached_property
    def _fields(self) -> tuple[_Field, ...]:
        record: Any = self._record
        hints = typing.get_type_hints(record)
        wires = self._wires.get(record, {})
        fields = [field for field in dataclasses.fields(record) if field.name not in self._beside]
        return tuple(self._field(field, hints[field.name], wires.get(field.name, Wire())) for field in fields)

    def _field(self, field: "dataclasses.Field[Any]", kind: Any, wire: Wire) -> _Field:
        what = f"{self._record.__name__}.{field.name}"
        name = wire.name or field.name
        there: Any = self._message.DESCRIPTOR.fields_by_name.get(name)
        if there is None:
            raise TypeError(f"{what}: {self._message.DESCRIPTOR.full_name} has no field {name}")
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        write, read = wire.write, wire.read
        if write is None or read is None:
            if default is True and kind is bool:
                raise TypeError(f"{what}: its default is true, and {there.full_name} cannot tell false from left out")
            option = self._option or wire.option or f"--{field.name.replace('_', '-')}"
            write, read = _Conversion(self, what, option, default).of(kind, there)
        zero = wire.zero or default is MISSING
        return _Field(field.name, name, there.number, there.has_presence, write, read, zero)

    def nested(self, record: Any, message: Descriptor, option: str) -> "Mapper[Any, Any]":
        """Return the mapper of records that are part of this mapper's records."""
        return Mapper(record, GetMessageClass(message), self._wires, option=option, lenient=self._lenient)

    def unknown(self, option: str, field: str, value: object, default: object) -> Any:
        """Return the default for an unknown value of an enum if lenient, else raise `SpecError`."""
        if self._lenient and default is not MISSING:
            return default
        shown = repr(value[:_LONGEST]) if isinstance(value, str) else value
        raise SpecError(option, f"{f'{field} ' if self._option else ''}{shown} is not known to this version")


class _Conversion(NamedTuple):
    """How the values of one field, ``what``, are converted; ``option`` is its name in errors."""

    mapper: Mapper[Any, Any]
    what: str
    option: str
    default: Any

    def of(self, kind: Any, there: FieldDescriptor) -> tuple[Convert | None, Convert | None]:
        """Return the conversions of values of type ``kind`` to the wire and from it."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, typing.NewType):
            return self.of(kind.__supertype__, there)
        if origin in (types.UnionType, typing.Union) and there.has_presence:
            return self.of(next(argument for argument in arguments if argument is not type(None)), there)
        if there.is_repeated and there.message_type is not None and there.message_type.has_options:  # an entry of a map
            if origin is Mapping and self.of(arguments[1], there.message_type.fields_by_name["value"]) == (None, None):
                return None, dict
        elif there.is_repeated:
            if origin is tuple:
                return _each(*self._one(arguments[0], there))
        elif origin is None:
            write, read = self._one(kind, there)
            if there.message_type is not None and self.default not in (MISSING, None):
                return _unless(self.default, write), read
            return write, read
        raise self._misfit(kind, there)

    def _one(self, kind: Any, there: FieldDescriptor) -> tuple[Convert | None, Convert | None]:
        """Return the conversions of one value, which may be an item of a list."""
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        if there.cpp_type in _SCALARS.get(kind, ()):
            return None, None
        if issubclass(kind, Enum) and there.enum_type is not None:
            return self._enum(kind, {value.name: value.number for value in there.enum_type.values})
        if issubclass(kind, Enum) and there.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return attrgetter("value"), self._known({member.value: member for member in kind})
        if dataclasses.is_dataclass(kind) and there.message_type is not None:
            nested = self.mapper.nested(kind, there.message_type, self.option)
            return nested.to_message, nested.from_message
        raise self._misfit(kind, there)

    def _enum(self, kind: type[Enum], numbers: Mapping[str, int]) -> tuple[Convert, Convert]:
        """Return the conversions of an enum by its members' names, which on the wire begin with the enum's name."""
        [prefix] = [name.removesuffix("UNSPECIFIED") for name, number in numbers.items() if number == 0]
        if missing := [member.name for member in kind if prefix + member.name not in numbers]:
            raise TypeError(f"{self.what}: there is no {prefix}{missing[0]} on the wire")
        known = {member: numbers[prefix + member.name] for member in kind}
        return known.__getitem__, self._known({number: member for member, number in known.items()})

    def _known(self, members: Mapping[Any, Enum]) -> Convert:
        field = self.what.rpartition(".")[2]

        def read(value: Any) -> Any:
            member = members.get(value)
            return self.mapper.unknown(self.option, field, value, self.default) if member is None else member

        return read

    def _misfit(self, kind: Any, there: FieldDescriptor) -> TypeError:
        return TypeError(f"{self.what}: {getattr(kind, '__name__', kind)} is no type for {there.full_name}")


def _each(write: Convert | None, read: Convert | None) -> tuple[Convert | None, Convert]:
    if write is None or read is None:
        return None, tuple
    return lambda items: [write(item) for item in items], lambda items: tuple([read(item) for item in items])


def _unless(default: Any, write: Convert | None) -> Convert:
    """Return the conversion ``write``, which leaves out the default."""
    convert = write or (lambda value: value)
    return lambda value: None if value is default or value == default else convert(value)
