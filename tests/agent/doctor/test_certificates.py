"""What `ebb doctor` says of certificates."""

import time

from ebbtide_agent.doctor import certificates
from ebbtide_agent.link.joined import Joined, store
from ebbtide_protos.handshake import validity

from tests.certificates import LONG_AGO_S, a_certificate, an_authority

DAY_S = 86_400.0


def levels(findings):
    return [finding.level.value for finding in findings]


def joined(tmp_path, age_s=0.0):
    authority = an_authority()
    key, certificate = a_certificate(authority, "ws2", age_s)
    store(tmp_path, Joined("lab:7078", authority.certificate.pem, certificate, key))
    return validity(certificate)[1]


def test_nothing_is_said_of_a_node_that_needs_none(tmp_path):
    assert list(certificates.node(tmp_path, time.time())) == []
    assert list(certificates.master(None, time.time())) == []


def test_a_certificate_that_ends_soon_is_warned_of_and_one_that_has_expired_is_a_problem(tmp_path):
    ends = joined(tmp_path)
    assert levels(certificates.node(tmp_path, ends - 15 * DAY_S)) == ["ok"]
    assert levels(certificates.node(tmp_path, ends - 13 * DAY_S)) == ["warning"]
    assert levels(certificates.node(tmp_path, ends + 1)) == ["problem"]
    assert levels(certificates.master(ends, ends - 15 * DAY_S)) == []
    assert levels(certificates.master(ends, ends - 13 * DAY_S)) == ["warning"]


def test_what_is_damaged_is_a_problem_that_says_what_to_do(tmp_path):
    joined(tmp_path, LONG_AGO_S)
    (tmp_path / "tls/joined.json").write_text('{"address": "lab:7078", "ca": "", "certificate": "", "key": ""}')
    (finding,) = certificates.node(tmp_path, time.time())
    assert (finding.level.value, "ebb agent join" in finding.advice) == ("problem", True)
