"""Encodes the headers of a request, and decodes those of a response (HPACK, RFC 7541)."""

from collections.abc import Iterable
from typing import Final

Header = tuple[bytes, bytes]

_STATIC_WORDS: Final = (
    ":authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200 :status=204 "
    ":status=206 :status=304 :status=400 :status=404 :status=500 accept-charset accept-encoding=gzip,deflate "
    "accept-language accept-ranges accept access-control-allow-origin age allow authorization cache-control "
    "content-disposition content-encoding content-language content-length content-location content-range content-type "
    "cookie date etag expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since "
    "last-modified link location max-forwards proxy-authenticate proxy-authorization range referer refresh "
    "retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)
_STATIC: Final[tuple[Header, ...]] = tuple(
    (name, value.replace(b",", b", "))
    for name, _, value in (word.partition(b"=") for word in _STATIC_WORDS.encode().split())
)
TABLE_BYTES: Final = 4096
"""The size of the table of headers that both ends remember; this is HTTP/2's default."""
_ENTRY_BYTES: Final = 32
"""What an entry of the table counts beside its name and value."""
_NEVER_INDEXED: Final = 0x10


def encoded(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers, so that neither end has to remember one of them."""
    block = bytearray()
    for name, value in headers:
        block.append(_NEVER_INDEXED)
        block += _string(name.encode()) + _string(value.encode())
    return bytes(block)


class Decoder:
    """Decode the headers of one connection, which refer to earlier ones. Raises ValueError for what is no header."""

    def __init__(self) -> None:
        self._table: list[Header] = []  # the newest first
        self._bytes = 0
        self._limit = TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """Return the headers of a whole block, in order."""
        reader, found = _Reader(block), list[Header]()
        while reader.at < len(block):
            first = block[reader.at]
            if first & 0x80:
                found.append(self._entry(reader.integer(7)))
            elif first & 0x40:
                header = self._literal(reader, 6)
                self._remember(header)
                found.append(header)
            elif first & 0x20:
                self._limit = reader.integer(5)
                if self._limit > TABLE_BYTES:
                    raise ValueError("the table of headers becomes too large")
                self._forget()
            else:
                found.append(self._literal(reader, 4))
        return found

    def _literal(self, reader: "_Reader", bits: int) -> Header:
        index = reader.integer(bits)
        name = self._entry(index)[0] if index else reader.string()
        return name, reader.string()

    def _entry(self, index: int) -> Header:
        if 1 <= index <= len(_STATIC):
            return _STATIC[index - 1]
        if not 0 < index <= len(_STATIC) + len(self._table):
            raise ValueError(f"no header has index {index}")
        return self._table[index - len(_STATIC) - 1]

    def _remember(self, header: Header) -> None:
        self._table.insert(0, header)
        self._bytes += _size(header)
        self._forget()

    def _forget(self) -> None:
        """Drop the oldest headers until the others fit into the table."""
        while self._bytes > self._limit:
            self._bytes -= _size(self._table.pop())


class _Reader:
    """Reads integers and strings from a block of headers."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self.at = 0

    def integer(self, bits: int) -> int:
        """Read an integer that begins in the lowest ``bits`` of the next byte."""
        most = (1 << bits) - 1
        value = self._byte() & most
        if value < most:
            return value
        for shift in range(0, 28, 7):
            byte = self._byte()
            value += (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise ValueError("a number has too many digits")

    def string(self) -> bytes:
        """Read a string, whichever way it is coded."""
        if self.at >= len(self._block):
            raise ValueError("headers end too soon")
        is_coded = self._block[self.at] & 0x80
        length = self.integer(7)
        text = self._block[self.at : self.at + length]
        if len(text) < length:
            raise ValueError("headers end too soon")
        self.at += length
        if is_coded:
            from ebbtide_cli.wire.huffman import decoded  # gRPC's own library hardly ever codes a text

            return decoded(text)
        return text

    def _byte(self) -> int:
        if self.at >= len(self._block):
            raise ValueError("headers end too soon")
        self.at += 1
        return self._block[self.at - 1]


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + _ENTRY_BYTES


def _string(text: bytes) -> bytes:
    return _integer(len(text)) + text


def _integer(value: int) -> bytes:
    """Encode the length of a string, with the bit unset that says that the string is coded."""
    if value < 0x7F:
        return bytes((value,))
    encoded, value = bytearray((0x7F,)), value - 0x7F
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
