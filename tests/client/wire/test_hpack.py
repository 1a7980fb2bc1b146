"""Headers as HTTP/2 codes them: the examples of RFC 7541, and what no peer should send."""

import pytest
from ebbtide_cli.wire.hpack import TABLE_BYTES, Decoder, encoded
from ebbtide_cli.wire.huffman import decoded

PLAIN = ("828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865")
CODED = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)
WEB = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
TABLES = (
    WEB,
    [*WEB, (b"cache-control", b"no-cache")],
    [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ],
)


@pytest.mark.parametrize("blocks", [PLAIN, CODED])
def test_the_examples_of_the_standard_are_decoded_with_what_earlier_blocks_taught(blocks):
    decoder = Decoder()
    for block, headers in zip(blocks, TABLES, strict=False):
        assert decoder.decode(bytes.fromhex(block)) == headers


def test_what_is_encoded_is_decoded_again():
    headers = [("grpc-timeout", "30000m"), ("authorization", "Bearer " + "x" * 5000), ("empty", "")]
    assert Decoder().decode(encoded(headers)) == [(name.encode(), text.encode()) for name, text in headers]


def test_headers_that_no_longer_fit_are_forgotten_oldest_first():
    decoder = Decoder()
    remembered = b"\x40\x01a\x01b" + b"\x40\x01c\x01d"
    assert decoder.decode(b"\x3f\x25" + remembered) == [(b"a", b"b"), (b"c", b"d")]  # the table has 68 bytes
    assert decoder.decode(b"\xbe\xbf") == [(b"c", b"d"), (b"a", b"b")]
    decoder.decode(b"\x3f\x04")  # 35 bytes: room for one
    assert decoder.decode(b"\xbe") == [(b"c", b"d")]
    with pytest.raises(ValueError, match="no header has index 63"):
        decoder.decode(b"\xbf")
    decoder.decode(b"\x20")  # none
    decoder.decode(b"\x40\x01e\x01f")
    with pytest.raises(ValueError, match="no header has index 62"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "no header has index 0"),
        (b"\xff\xff\xff\xff\xff\xff\x01", "a number has too many digits"),
        (b"\x40", "headers end too soon"),
        (b"\x40\x05ab", "headers end too soon"),
        (b"\x40\x01a", "headers end too soon"),
        (b"\xff", "headers end too soon"),
        (b"\x3f" + b"\xe2\x1f", "becomes too large"),
        (b"\x40\x01a\x81\x00", "padded"),
        (b"\x40\x01a\x84\xff\xff\xff\xff", "ends before its end|padded"),
    ],
)
def test_what_is_no_header_is_refused(block, why):
    with pytest.raises(ValueError, match=why):
        Decoder().decode(block)


def test_every_byte_has_a_code_of_its_own():
    from ebbtide_cli.wire.huffman import CODES

    assert sorted(CODES.values()) == list(range(257))
    assert sum(2.0**-length for length, _ in CODES) == 1.0
    assert decoded(bytes.fromhex("6402")) == b"302"
    assert decoded(bytes.fromhex("d07abe941054d444a8200595040b8166e082a62d1bff")) == b"Mon, 21 Oct 2013 20:13:21 GMT"


def test_the_table_has_the_size_that_a_peer_assumes():
    assert TABLE_BYTES == 4096
