"""What `ebb master init` makes, and what it keeps."""

import json
import shutil
import time

import pytest
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import Identities
from ebbtide_master.initialise import initialise
from ebbtide_master.store.journal import StoreInUseError
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.tls.folder import TlsFolder
from ebbtide_master.tls.listeners import open_listeners
from ebbtide_protos.invitation import decode

HOSTS = ("login.lab", "192.0.2.7")


def test_the_first_admin_is_invited_once_and_everything_is_kept(tmp_path):
    first = initialise(tmp_path, HOSTS, 7000)
    invitation = decode(first.invitation)
    assert (first.made, first.address) == (("authority", "certificate", "invitation"), "login.lab:7000")
    assert (invitation.address, invitation.ca) == ("login.lab:7000", first.authority.pem)
    assert first.server.hosts[:2] == HOSTS
    assert {"localhost", "127.0.0.1", "::1"} <= set(first.server.hosts)
    again = initialise(tmp_path, (), None)
    assert (again.made, again.invitation, again.server) == ((), None, first.server)
    assert (again.address, again.authority) == (first.address, first.authority)
    other = initialise(tmp_path, ("new.lab",), 7100)
    assert (other.made, other.authority) == (("certificate",), first.authority)
    assert set(first.server.hosts) | {"new.lab"} == set(other.server.hosts)
    assert TlsFolder.of(tmp_path).port == 7100
    store = SqliteStore(tmp_path / "journal.db")
    assert Identities(store.vault).caller(invitation.secret, time.time()).role is Role.ADMIN
    store.close()


def test_the_host_that_was_named_last_is_that_of_invitations_from_then_on(tmp_path):
    initialise(tmp_path, ("old.lab",), None)
    store = SqliteStore(tmp_path / "journal.db")
    listeners = open_listeners(tmp_path, "0.0.0.0", None, None, store.vault, time.time)
    assert listeners.public_host == "old.lab"
    assert initialise(tmp_path, ("new.lab",), None).made == ("certificate",)
    assert (listeners.public_host, "old.lab" in listeners.hosts()) == ("new.lab", True)
    assert initialise(tmp_path, (), None).address.startswith("new.lab:")
    assert initialise(tmp_path, ("new.lab", "old.lab"), None).made == ()
    store.close()


def test_while_the_master_runs_nothing_is_half_made(tmp_path):
    store = SqliteStore(tmp_path / "journal.db")
    with pytest.raises(StoreInUseError):
        initialise(tmp_path, HOSTS, None)
    assert not TlsFolder.of(tmp_path).exists
    store.close()
    initialise(tmp_path, HOSTS, None)
    store = SqliteStore(tmp_path / "journal.db")
    assert initialise(tmp_path, ("more.lab",), None).made == ("certificate",)
    store.close()


def test_a_crash_before_the_invitation_was_written_leaves_no_token_that_nobody_knows(tmp_path):
    initialise(tmp_path, HOSTS, None)
    shutil.rmtree(tmp_path / "tls")
    second = initialise(tmp_path, HOSTS, None)
    store = SqliteStore(tmp_path / "journal.db")
    identities = Identities(store.vault)
    (token,) = [token for user in identities.users() for token in identities.tokens_of(user.name)]
    assert decode(second.invitation).secret.split("_")[1] == token.id
    store.close()


def test_an_authority_from_another_machine_is_used_as_it_is(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    first = initialise(here, HOSTS, None)
    (there / "tls").mkdir(parents=True)
    for name in ("ca.pem", "ca.key"):
        shutil.copy2(here / "tls" / name, there / "tls" / name)
    second = initialise(there, ("standby.lab",), None)
    assert (second.authority, second.made, second.invitation) == (first.authority, ("certificate",), None)
    assert second.server.hosts[0] == "standby.lab"
    assert not (there / "journal.db").exists()


def test_a_damaged_note_of_the_port_is_no_reason_not_to_start(tmp_path):
    folder = TlsFolder.of(tmp_path)
    assert folder.port == 7077
    initialise(tmp_path, HOSTS, 7100)
    (folder.path / "init.json").write_text(json.dumps([]))
    assert folder.port == 7077
