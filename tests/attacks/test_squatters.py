"""Who poses as the master, and what is left for them where it should be: they hear no token, and give no order."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_agent.link import joined
from ebbtide_agent.link.endpoint import Endpoint, NoMaster, local_master
from ebbtide_agent.link.joined import Joined
from ebbtide_cli.home import Home
from ebbtide_machine.place import NotTrusted
from ebbtide_protos import home_socket

from tests.certificates import a_certificate, an_authority
from tests.e2e.cluster import EBB, wait_for
from tests.proof import publish

TOKEN = "ebb_0123456789abcdef_of-the-account-that-runs-the-master"
STRANGER = 4711


class FakeMaster(grpc.GenericRpcHandler):
    """Answers no call, and writes down each: its method and what came with it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []

    def service(self, handler_call_details: Any) -> None:
        self.heard.append((handler_call_details.method, tuple(handler_call_details.invocation_metadata)))


@contextmanager
def a_fake_master(bind: Callable[[grpc.Server], int]) -> Iterator[tuple[FakeMaster, int]]:
    """It serves where ``bind`` says for as long as the block lasts."""
    fake, server = FakeMaster(), grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((fake,))
    port = bind(server)
    server.start()
    yield fake, port
    server.stop(None).wait()


def plain(server: grpc.Server) -> int:
    return server.add_insecure_port("127.0.0.1:0")


def of_another_authority(server: grpc.Server) -> int:
    certificate, key = an_authority().server(("localhost", "127.0.0.1"), time.time())
    return server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key.encode(), certificate.encode())]))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One whose master was there before, with its token, its authority and its socket's directory."""
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    (path / "token").write_text(TOKEN)
    (path / "tls").mkdir()
    (path / "tls/ca.pem").write_text(an_authority().certificate.pem)
    (path / "run").mkdir(mode=0o700)
    return path


def ebb(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`ebb` of the account whose home it is."""
    own = {"EBB_HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
    return subprocess.run(
        [*EBB, *arguments], env=os.environ | own | environment, capture_output=True, text=True, timeout=60
    )


@contextmanager
def an_agent(home: Path, *options: str) -> Iterator[Callable[[str], object]]:
    """One runs; what is yielded waits until it has logged some words."""
    log = home / "agent.log"
    command = [*EBB, "agent", "--name", "n1", "--gpus", "none", "--warm", "0", "--min-uid", "0", *options]
    with log.open("wb") as out:
        agent = subprocess.Popen(command, env=os.environ | {"EBB_HOME": str(home)}, stdout=out, stderr=out)
    try:
        yield lambda words: wait_for(f"the agent says {words!r}", lambda: words in log.read_text(), 60)
    finally:
        agent.terminate()
        agent.wait(30)


@pytest.mark.parametrize("bind", [plain, of_another_authority])
def test_on_the_port_of_a_master_that_is_away_nobody_hears_a_token_or_is_obeyed(
    home: Path, bind: Callable[[grpc.Server], int]
) -> None:
    """The record is believed, as this very account wrote it; who listens there is not."""
    with a_fake_master(bind) as (fake, port):
        publish(home, host="127.0.0.1", port=port, agent_port=port)
        for master in ((), ("--master", f"127.0.0.1:{port}")):
            assert ebb(home, "ls", *master).returncode == 3
        with an_agent(home) as says:
            says("event=master-away")
    assert fake.heard == []


@pytest.mark.parametrize("bind", [plain, of_another_authority])
def test_a_laptop_that_is_logged_in_says_nothing_to_another_than_its_master(
    home: Path, tmp_path: Path, bind: Callable[[grpc.Server], int]
) -> None:
    with a_fake_master(bind) as (fake, port):
        (home / "config/ebbtide").mkdir(parents=True)
        login = f'{{"token": "{TOKEN}", "ca": {an_authority().certificate.pem!r}}}'.replace("'", '"')
        (home / "config/ebbtide/logins.json").write_text(f'{{"127.0.0.1:{port}": {login}}}')
        asked = ebb(home, "ls", EBB_HOME="", HOME=str(home))  # while EBB_HOME is set, the last login does not count
        assert (asked.returncode, f"127.0.0.1:{port}" in asked.stderr) == (3, True)
        assert ebb(tmp_path, "ls", "--master", f"127.0.0.1:{port}", EBB_TOKEN=TOKEN).returncode == 3
    assert fake.heard == []


@pytest.mark.parametrize("bind", [plain, of_another_authority])
def test_an_agent_that_joined_obeys_nobody_who_sits_on_its_masters_port(
    home: Path, bind: Callable[[grpc.Server], int]
) -> None:
    authority = an_authority()
    key, certificate = a_certificate(authority, "n1")
    with a_fake_master(bind) as (fake, port):
        member = Joined(f"127.0.0.1:{port}", authority.certificate.pem, certificate, key)
        joined.store(home / "nodes/n1", member)
        with an_agent(home) as says:
            says("event=master-away")
    assert fake.heard == []


def test_an_agent_obeys_no_port_before_it_has_joined(home: Path) -> None:
    with a_fake_master(plain) as (fake, port):
        done = ebb(home, "agent", "--name", "n1", "--gpus", "none", "--master", f"127.0.0.1:{port}")
    assert (done.returncode, "join its cluster first" in done.stderr) == (2, True)
    assert fake.heard == []


def test_a_stale_record_whose_pid_is_somebody_elses_now_names_no_master(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE) as bystander:
        publish(home, pid=bystander.pid)
        with pytest.raises(NoMaster, match="none runs here"):
            local_master(home)
        assert Home(home).master() is None
        bystander.kill()


def test_a_record_that_others_can_write_names_no_master(home: Path) -> None:
    publish(home)
    for place in (home / "master.json", home):
        before = place.stat().st_mode & 0o777
        place.chmod(0o777)
        with pytest.raises(NoMaster, match="can be written by others"):
            local_master(home)
        assert Home(home).master() is None
        place.chmod(before)
    assert Home(home).master() is not None


@pytest.mark.root
def test_a_record_of_another_account_names_no_master(home: Path) -> None:
    publish(home)
    os.chown(home / "master.json", STRANGER, STRANGER)
    with pytest.raises(NoMaster, match=f"belongs to uid {STRANGER}"):
        local_master(home)
    assert Home(home).master() is None


@contextmanager
def squatting(home: Path) -> Iterator[FakeMaster]:
    """A fake master listens at the socket of a home that claims to have a master."""
    with home_socket.made(home) as target, a_fake_master(lambda server: server.add_insecure_port(target)) as (fake, _):
        publish(home)
        yield fake


def refused(home: Path, words: str) -> None:
    """Client and agent find nobody there to talk to."""
    done = ebb(home, "ls")
    assert (done.returncode, words in done.stderr) == (3, True), done.stderr
    with pytest.raises(NoMaster, match=words), Endpoint.of(home).reached():
        pass


def test_at_a_socket_that_others_can_reach_nobody_is_told_anything(home: Path) -> None:
    with squatting(home) as fake:
        for place, mode, words in (
            (home / "run", 0o711, "can be entered by others"),
            (home / "run", 0o702, "can be written by others"),
            (home, 0o707, "can be written by others"),
        ):
            before = place.stat().st_mode & 0o777
            place.chmod(mode)
            if place != home:
                refused(home, words)
            with pytest.raises(NotTrusted, match=words), home_socket.reached(home):
                pass
            place.chmod(before)
        assert fake.heard == []
        ebb(home, "ls")
        assert [dict(said)["authorization"] for _, said in fake.heard] == [f"Bearer {TOKEN}"], "else this shows nothing"


@pytest.mark.root
@pytest.mark.parametrize("squatted", ["run", "run/master.sock"])
def test_at_a_socket_of_another_account_nobody_is_told_anything(home: Path, squatted: str) -> None:
    with squatting(home) as fake:
        os.chown(home / squatted, STRANGER, STRANGER)
        refused(home, f"belongs to uid {STRANGER}")
    assert fake.heard == []


@pytest.mark.root
def test_at_a_link_of_another_account_nobody_is_told_anything(home: Path) -> None:
    with squatting(home) as fake:
        (home / "run").rename(home / "elsewhere")
        (home / "run").symlink_to("elsewhere")
        os.lchown(home / "run", STRANGER, STRANGER)
        refused(home, f"belongs to uid {STRANGER}")
    assert fake.heard == []


@pytest.mark.root
def test_who_listens_at_the_socket_must_be_of_the_account_that_owns_it(home: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listener, home_socket.made(home) as target:
        listener.bind(target.removeprefix("unix:"))
        os.seteuid(STRANGER)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        publish(home)
        refused(home, f"uid {STRANGER} listens")
        listener.accept()[0].close()
        said, _ = listener.accept()
        with said:
            assert said.recv(1) == b"", "it was only asked who it is"


@pytest.mark.root
@pytest.mark.parametrize("squatted", ["home", "above", "link"])
def test_a_root_agent_follows_nobody_into_a_home_that_is_not_its_own(tmp_path: Path, squatted: str) -> None:
    above = tmp_path / "above"
    (above / "home").mkdir(parents=True)
    (above / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    named = above / ("link" if squatted == "link" else "home")
    os.chown(above if squatted == "above" else named, STRANGER, STRANGER, follow_symlinks=False)
    done = ebb(named, "agent", "--name", "n1", "--gpus", "none")
    assert (done.returncode, f"belongs to uid {STRANGER}" in done.stderr) == (1, True), done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())
