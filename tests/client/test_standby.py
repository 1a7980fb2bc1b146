"""`ebb` is given the addresses of several masters, of which one serves."""

import socket
from collections.abc import Iterator

import pytest
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.credentials import authority, token_for
from ebbtide_cli.masters.logins import Login, trying

from tests.client.runs import Ebb
from tests.client.scripted_master import ScriptedMaster, make_job, serving

NOBODY = "127.0.0.1:1"


@pytest.fixture
def address(home, monkeypatch) -> Iterator[str]:
    """Where a master serves."""
    scripted = ScriptedMaster()
    scripted.jobs["17"] = make_job()
    with serving(scripted) as address:
        yield address


@pytest.mark.parametrize("order", ["{nobody},{address}", "{address},{nobody}", " {nobody} , {address} "])
def test_it_asks_the_one_that_serves(ebb: Ebb, address: str, order: str, monkeypatch):
    named = order.format(nobody=NOBODY, address=address)
    assert "train.py" in ebb("ls", "--master", named).out
    monkeypatch.setenv("EBB_MASTER", named)
    assert "train.py" in ebb("ls").out


def test_it_passes_by_one_that_takes_connections_and_says_nothing(ebb: Ebb, address: str, monkeypatch):
    """As a process does that was stopped: the kernel accepts for it."""
    monkeypatch.setattr("ebbtide_cli.masters.choosing.CONNECT_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stuck = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "train.py" in ebb("ls", "--master", f"{stuck},{address}").out


def test_if_none_serves_all_are_named(ebb: Ebb):
    result = ebb("ls", "--master", f"{NOBODY},[::1]:1")
    assert result.code == 3
    assert result.complaint == f"no master at any of {NOBODY}, [::1]:1 (--master): start one with 'ebb master'"


@pytest.mark.parametrize("named", [",", "127.0.0.1:1,", "127.0.0.1:1,x"])
def test_each_of_them_must_be_an_address(ebb: Ebb, named: str):
    result = ebb("ls", "--master", named)
    assert result.code == 2
    assert result.complaint.startswith("--master: ")


def test_a_login_at_one_of_them_is_good_for_all(home, monkeypatch):
    """They share the users and their tokens."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("EBB_TOKEN", raising=False)
    with trying("127.0.0.1:1", Login("ebb_t1_secret", "PEM")):
        pass
    there = Address("127.0.0.1", 2, "--master", beside=("127.0.0.1:1", "127.0.0.1:2"))
    assert (token_for(there), authority(there)) == ("ebb_t1_secret", "PEM")
    assert authority(Address("127.0.0.1", 2, "--master")) == ""
