"""Logins on this machine, and files of users; what masters make of tokens is tested with masters."""

import os
from pathlib import Path

import pytest
from ebbtide_cli.errors import Failure, Unreachable
from ebbtide_cli.masters import credentials, logins
from ebbtide_cli.masters.address import Address, at_home
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.masters.logins import Login
from ebbtide_cli.submitting import snapshots
from ebbtide_protos.invitation import Invitation, encode
from ebbtide_protos.v1 import user_pb2

from tests.client.scripted_master import ScriptedMaster, serving

HERE, THERE = "127.0.0.1:1", "gpu.lab.example:4711"


def log_in(address: str, token: str = "ebb_1_x", ca: str = "") -> None:
    with logins.trying(address, Login(token, ca)):
        pass


def test_a_login_is_kept_for_its_user_alone(home):
    log_in(THERE, "ebb_1_x", "PEM")
    path = home / "config" / "ebbtide" / "logins.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert logins.login_at(THERE) == Login("ebb_1_x", "PEM")
    assert logins.login_at(HERE) is None
    assert list(path.parent.iterdir()) == [path]


def test_a_login_that_fails_leaves_those_that_there_were(home):
    log_in(HERE)
    during = []

    def fail():
        with logins.trying(THERE, Login("ebb_2_y")):
            during.append(logins.last_login())
            raise Failure("no")

    with pytest.raises(Failure):
        fail()
    assert during == [THERE]
    assert (logins.last_login(), logins.login_at(THERE)) == (HERE, None)


def test_the_last_login_is_the_one_that_counts_and_may_be_forgotten(home):
    for address in (THERE, HERE, THERE):
        log_in(address)
    assert logins.last_login() == THERE
    assert logins.forget(THERE) == Login("ebb_1_x")
    assert logins.forget(THERE) is None
    assert logins.last_login() == HERE


def test_a_damaged_file_is_told_and_never_written_over(home):
    path = home / "config" / "ebbtide" / "logins.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"x": 1}')
    with pytest.raises(Failure, match="is damaged: remove it"):
        log_in(HERE)
    assert path.read_text() == '{"x": 1}'


def test_the_last_login_says_where_the_master_is_if_nothing_else_does(home, monkeypatch):
    monkeypatch.delenv("EBB_HOME")
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(Unreachable, match="no master in EBB_HOME"):
        find_master(None)
    log_in(THERE)
    assert str(find_master(None)) == THERE
    monkeypatch.setenv("EBB_MASTER", HERE)
    assert (str(find_master(None)), str(find_master("[::1]:7"))) == (HERE, "[::1]:7")


def test_a_home_that_is_named_and_has_no_master_is_never_replaced_by_the_last_login(ebb, home):
    """`ebb login`; `export EBB_HOME=…; ebb up; ebb down; ebb cancel 8` must not cancel job 8 of where one logged in."""
    with serving(master := ScriptedMaster()) as there:
        log_in(there)
        for verb in (("cancel", "8"), ("ls",), ("submit", "--", "true")):
            result = ebb(*verb)
            assert result.code == 3
            wanted = f"start one with 'ebb up', or unset EBB_HOME for {there}, where you logged in last"
            assert result.complaint == f"no master in EBB_HOME {home}: {wanted}"
        assert master.requests == []


def test_the_token_is_that_of_the_environment_else_of_the_login_else_of_the_home(home, monkeypatch):
    address = Address("127.0.0.1", 1, "test")
    assert credentials.token_for(address) is None
    (home / "token").write_text("ebb_home\n")
    assert credentials.token_for(at_home(home, "test")) == "ebb_home"
    assert credentials.token_for(address) is None, "it is for the master of that home only"
    log_in(HERE, "ebb_login")
    assert credentials.token_for(address) == "ebb_login"
    monkeypatch.setenv("EBB_TOKEN", " ebb_named ")
    assert credentials.token_for(address) == "ebb_named"
    owner = at_home(home, "test")._replace(as_owner=True)
    assert (credentials.token_for(owner), credentials.token_for(at_home(home, "test"))) == ("ebb_home", "ebb_named")


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("192.0.2.1", False)]
)
def test_a_path_means_the_same_on_this_machine_only(host, here):
    assert credentials.is_this_machine(Address(host, 1, "test")) == here


def test_for_a_master_on_another_machine_a_submit_takes_a_snapshot_unless_it_is_not_to(
    ebb, master, monkeypatch, tmp_path
):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("pass\n")
    monkeypatch.chdir(folder)
    taken = []
    for elsewhere, options in ((False, ()), (True, ()), (True, ("--no-snapshot",)), (False, ("--snapshot",))):
        monkeypatch.setattr(snapshots, "is_this_machine", lambda address, there=elsewhere: not there)
        assert ebb("submit", *options, "--", "python", "train.py").code == 0
        taken.append(master.sent("Submit")[-1].spec.HasField("snapshot"))
    assert taken == [False, True, False, True]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "neither an invitation"),
        ("ebbi_!", "invitation"),
        ("ebbi_e30", "invitation"),
        (encode(Invitation("nowhere", "ebb_x", "")), "HOST:PORT"),
        ("password", "neither an invitation"),
    ],
)
def test_what_is_no_invitation_is_refused_and_not_repeated(ebb, monkeypatch, tmp_path, line, words):
    (tmp_path / "line").write_text(line)
    with (tmp_path / "line").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        done = ebb("login")
    assert (done.code, words in done.err, bool(line) and line in done.err) == (2, True, False)


def test_a_bare_token_is_sent_to_no_other_machine(ebb, monkeypatch, tmp_path):
    (tmp_path / "line").write_text("ebb_0123456789abcdef_x\n")
    with (tmp_path / "line").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        done = ebb("login", "192.0.2.1:4711")
    assert (done.code, "ask for an invitation" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ann,,x,\n", ":1: 'x' is no uid"),
        ("ann\nann\n", ":2: ann stands there twice"),
        ("ann,a,1,user,more\n", ":1: is not name,account,uid,role"),
        ("name,colour\nann,red\n", ":1: there is no column 'colour'"),
        ("role,name\nuser\n", ":2: is not role,name"),
        ("ann,,4294967296,\n", ":1: 4294967296 is no uid"),
        ("ann,,-1,\n", ":1: '-1' is no uid"),
    ],
)
def test_a_mistake_in_a_file_of_users_is_told_by_its_line(ebb, master, tmp_path, text, words):
    path = tmp_path / "users.csv"
    path.write_text(text)
    done = ebb("user", "import", str(path))
    assert (done.code, words in done.err) == (2, True)


def test_a_file_of_users_may_leave_out_columns_and_have_remarks(monkeypatch, tmp_path):
    from ebbtide_cli.verbs.user import _read

    path = tmp_path / "users.csv"
    path.write_text("# of the lab\nann, a.smith, 1001\n\nbob\n")
    assert list(_read(path)) == [user_pb2.User(name="ann", account="a.smith", uid=1001), user_pb2.User(name="bob")]
    path.write_text("role,name\noperator,zoe\n")
    assert list(_read(path)) == [user_pb2.User(name="zoe", role="operator")]


def test_exactly_one_source_of_users_is_wanted(ebb, home: Path):
    for words in ((), ("--group", "ml", "--all-accounts"), ("x.csv", "--all-accounts")):
        assert ebb("user", "import", *words).code == 2
    assert ebb("user", "set", "ann").code == 2
    assert ebb("user", "import", os.devnull + "/x").code == 2


@pytest.mark.parametrize("time", ["0s", "0d", "0h0m"])
def test_a_token_that_would_be_over_at_once_is_refused_with_the_word_for_one_that_never_is(ebb, master, time):
    done = ebb("token", "create", "--expires", time)
    assert (done.code, master.requests) == (2, [])
    assert f"'--expires': '{time}' is over at once: write never" in done.complaint
