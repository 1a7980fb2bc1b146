"""The line of text that lets somebody in."""

import base64
import json

import pytest
from ebbtide_protos.invitation import PREFIX, Invitation, decode, encode

INVITATION = Invitation("login.lab:7077", "ebb_0123456789abcdef_secret", "-----BEGIN CERTIFICATE-----\nMIIB\n")


def _line(said: object) -> str:
    return PREFIX + base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


@pytest.mark.parametrize("length", range(4))
def test_what_was_encoded_is_decoded_whatever_white_space_is_around_it(length):
    invitation = Invitation("[::1]:7077", "s" * length, "ü")
    assert decode(f"  {encode(invitation)}\n") == invitation


def test_it_is_one_line_that_survives_a_shell():
    assert encode(INVITATION).replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    "text",
    [
        "", "ebbi_", "ebb_0123", encode(INVITATION)[:-5], encode(INVITATION) + "!", "ebbi_" + "A" * 20_000,
        "ebbi_" + "A" * 5, _line([]), _line({"address": "a"}), _line({"address": "a", "secret": 1, "ca": ""}),
        _line({"address": "a", "secret": "b", "ca": "", "more": ""}), _line(None), "ebbi_" + "Ww" * 8000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line_without_the_secret(text):
    with pytest.raises(ValueError, match="invitation") as caught:
        decode(text)
    assert INVITATION.secret not in str(caught.value)
    assert "\n" not in str(caught.value)
