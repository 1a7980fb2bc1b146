"""Messages that nobody would send: every field of every kind, filled with what is most likely to be forgotten."""

from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

F = FieldDescriptor

TEXTS = (
    "", "0", "1", "1.0", "1.0-9", "1.999999999", "2", "3", "17.2-5", "@", "@~1", "@~99999", "-1", "a\0b", "\x1b[2J\x07",
    "\u202egnp.exe", "é" * 130, "/", "/tmp", "../../etc/passwd", "/" + "a" * 5000, "x" * 129, "x" * 70_000, "n1",
    "default", "SIGKILL", "ok:1", "9" * 5000, "%n%s", "{0.__class__}", "'; DROP TABLE events; --", "\ufeff",
    "\U0001f4a9" * 40, "name=(", "(a+)+$", "nan", "1e400", "ann",
)  # fmt: skip
NUMBERS = (0.0, -0.0, -1.0, 0.5, 1.0, 1e-308, 1e18, 1e308, -1e308, float("nan"), float("inf"), -float("inf"))
WIDTHS = {
    F.TYPE_INT32: (-(2**31), 2**31 - 1), F.TYPE_INT64: (-(2**63), 2**63 - 1), F.TYPE_UINT32: (0, 2**32 - 1),
    F.TYPE_UINT64: (0, 2**64 - 1), F.TYPE_ENUM: (-(2**31), 2**31 - 1),
}  # fmt: skip
DEEPEST = 4


class Odd:
    """Makes messages by chance; the same ones for the same ``random``."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def message(self, descriptor: Descriptor, depth: int = 0) -> Any:
        """One of that type, with some of its fields."""
        made = GetMessageClass(descriptor)()
        share = self.random.choice((0.1, 0.5, 0.9))
        for field in descriptor.fields:
            if self.random.random() < share:
                self._fill(made, field, depth)
        return made

    def near(self, plausible: Message) -> Any:
        """As ``plausible``, but for a field or two, at any depth."""
        made = type(plausible)()
        made.CopyFrom(plausible)
        for _ in range(self.random.choice((1, 1, 2))):
            self._change(made)
        return made

    def damaged(self, data: bytes) -> bytes:
        """Some of its bytes changed, or cut off; or any bytes at all."""
        if not data or self.random.random() < 0.3:
            return self.random.randbytes(self.random.choice((0, 1, 7, 100, 2000)))
        changed = bytearray(data)
        for _ in range(self.random.randint(0, 8)):
            changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        if self.random.random() < 0.3:
            del changed[self.random.randint(0, len(changed)) :]
        return bytes(changed)

    def _change(self, made: Message) -> None:
        within = [value for field, value in made.ListFields() if field.type == F.TYPE_MESSAGE and not field.is_repeated]
        if within and self.random.random() < 0.7:
            self._change(self.random.choice(within))
        elif made.DESCRIPTOR.fields:
            self._fill(made, self.random.choice(made.DESCRIPTOR.fields), 2)

    def _fill(self, made: Message, field: FieldDescriptor, depth: int) -> None:
        if field.is_repeated:
            values = getattr(made, field.name)
            for _ in range(self.random.choice((1, 1, 1, 2, 3, 12) if depth < 2 else (1, 2))):
                self._add(values, field, depth)
        elif field.type == F.TYPE_MESSAGE:
            if depth < DEEPEST:
                getattr(made, field.name).MergeFrom(self.message(field.message_type, depth + 1))
        else:
            setattr(made, field.name, self._value(field))

    def _add(self, values: Any, field: FieldDescriptor, depth: int) -> None:
        if field.type != F.TYPE_MESSAGE:
            values.append(self._value(field))
        elif field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            values[self._value(key)] = self._value(value)
        elif depth < DEEPEST:
            values.append(self.message(field.message_type, depth + 1))

    def _value(self, field: FieldDescriptor) -> Any:
        random = self.random
        match field.type:
            case F.TYPE_STRING:
                return random.choice(TEXTS)
            case F.TYPE_BYTES:
                return random.randbytes(random.choice((0, 1, 300)))
            case F.TYPE_DOUBLE | F.TYPE_FLOAT:
                return random.choice((*NUMBERS, random.uniform(-1e3, 1e12)))
            case F.TYPE_BOOL:
                return random.random() < 0.5
            case F.TYPE_ENUM if random.random() < 0.8:
                return random.choice(field.enum_type.values).number
        low, high = WIDTHS[field.type]
        return random.choice(
            (low, high, max(low, -1), 0, 1, 2, 3, 4, 16, 17, 1000, 1001, 4097, random.randint(low, high))
        )
