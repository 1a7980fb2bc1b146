"""Several masters on one PostgreSQL, as processes: whatever happens to the leader, what was promised stays."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from ebbtide_protos.v1 import user_pb2

from tests.master.leaders import DEADLINE_S, Leader, jobs, request, standbys, submit
from tests.postgres import PASSWORD, Server, rows

pytestmark = pytest.mark.postgres

Start = Callable[..., Leader]


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a master in the home of that name; none outlives the test."""
    started: list[Leader] = []

    def start(name: str, url: str = url) -> Leader:
        started.append(Leader(tmp_path / name, url))
        return started[-1]

    yield start
    for leader in started:
        leader.close()


def test_a_leader_that_was_paused_is_followed_by_the_standby_and_ends_when_it_goes_on(start: Start, url: str) -> None:
    first = start("a")
    with first.asked() as stub:
        kept = [submit(stub)]
        second = start("b")
        second.says("standby=waiting leader=")
        first.popen.send_signal(signal.SIGSTOP)
        with second.asked() as other:
            assert jobs(other) == kept
            kept.append(submit(other))
            too_late = stub.Submit.future(request(), timeout=DEADLINE_S)
            first.popen.send_signal(signal.SIGCONT)
            with pytest.raises(grpc.RpcError) as error:
                too_late.result()
            assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), "it ended meanwhile"
            code, words = first.end()
            assert (code, "journal=failed" in words, "Traceback" in words) == (70, True, False), words
            assert jobs(other) == kept
    assert not (first.home / "master.json").exists()
    assert rows(url, "SELECT count(*) FROM ebbtide.events WHERE kind = 'JobSubmitted'") == [(2,)]


def test_the_leader_says_who_stands_by(start: Start) -> None:
    first = start("a")
    with first.asked() as stub:
        assert standbys(stub, 0) == []
        shown = stub.ShowSettings(user_pb2.ShowSettingsRequest(), timeout=DEADLINE_S)
        where = {(one.value, one.in_file) for one in shown.settings if one.name == "journal.store"}
        assert (shown.journal.kind, where) == ("PostgreSQL", {("PostgreSQL", "PostgreSQL")})
        assert (list(shown.changed), list(shown.needs_restart)) == ([], [])
        second = start("b")
        [standby] = standbys(stub, 1)
        assert standby.name.endswith(f" pid {second.popen.pid}")
        assert standby.heard_s < DEADLINE_S
        second.popen.terminate()
        second.end()
        assert standbys(stub, 0) == []


def test_a_standby_leads_with_the_configuration_as_it_is_when_it_takes_over(start: Start) -> None:
    first = start("a")
    first.ready()
    second = start("b")
    second.says("standby=waiting leader=")
    (second.home / "ebbtide.toml").write_text("[fencing]\nhook = ['/bin/true']\n[quotas.default]\nqueued = 7\n")
    first.popen.kill()
    with second.asked() as stub:
        shown = stub.ShowSettings(user_pb2.ShowSettingsRequest(), timeout=DEADLINE_S)
    holds = {one.name: one.value for one in shown.settings}
    assert (holds["fencing.hook"], holds["quotas.default.queued"]) == ("set", "7")
    assert (list(shown.changed), list(shown.needs_restart)) == ([], [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[quotas.default]\nqueued = 'many'\n", "quotas.default.queued: "),
        ("[pools.default]\npolicy = 'best'\n", "pools.default.policy: "),
    ],
)
def test_a_standby_does_not_lead_while_its_configuration_is_wrong(
    start: Start, url: str, text: str, words: str
) -> None:
    first = start("a")
    first.ready()
    second = start("b")
    second.says("standby=waiting leader=")
    (file := second.home / "ebbtide.toml").write_text(text)
    first.popen.kill()
    second.says(f"configuration=wrong leads=no {file}: {words}")
    epoch = rows(url, "SELECT epoch FROM ebbtide.leader")
    for name in ("one", "another"):  # each is looked at anew
        file.write_text(f"[quotas.default]\nqueued = '{name}'\n")
        second.says(f"configuration=wrong leads=no {file}: quotas.default.queued: '{name}'")
    assert (second.leads, rows(url, "SELECT epoch FROM ebbtide.leader")) == (False, epoch)
    file.unlink()
    second.ready()
    assert "Traceback" not in second.said()


def test_a_standby_whose_database_is_another_by_then_does_not_lead(
    start: Start, postgres: Server, url: str, tmp_path: Path
) -> None:
    first = start("a")
    first.ready()
    file = tmp_path / "b" / "ebbtide.toml"
    file.parent.mkdir(mode=0o700)
    file.write_text(f'[journal]\nstore = "{url}"\n')
    second = start("b", "")
    second.says("standby=waiting leader=")
    file.write_text(f'[journal]\nstore = "{postgres.database()}"\n')
    first.popen.kill()
    code, said = second.end()
    assert (code, "Traceback" in said) == (1, False), said
    assert said.endswith(f"ebb: {file}: journal.store: was changed while this master waited: start it again\n")


@pytest.mark.slow
def test_a_server_that_ends_ends_the_master_and_nothing_is_lost(start: Start, postgres: Server) -> None:
    first = start("a")
    with first.asked() as stub:
        kept = submit(stub)
    postgres.stop()
    code, words = first.end()
    assert (code, words.count("journal=failed"), "Traceback" in words) == (70, 1, False)
    postgres.start()
    with start("a").asked() as stub:
        assert jobs(stub) == [kept]


@pytest.mark.slow
def test_a_master_that_waits_ends_when_it_is_told_to(start: Start) -> None:
    first = start("a")
    first.ready()
    second = start("b")
    second.says("standby=waiting")
    second.popen.send_signal(signal.SIGTERM)
    assert second.end()[0] == 0
    assert first.leads


def test_a_reload_does_not_end_a_master_that_waits_and_is_done_once_it_leads(start: Start) -> None:
    first = start("a")
    first.ready()
    second = start("b")
    second.says("standby=waiting leader=")
    second.popen.send_signal(signal.SIGHUP)
    first.popen.kill()
    with second.asked() as stub:
        assert jobs(stub) == []
    second.says("configuration=read changed= restart=")
    second.popen.send_signal(signal.SIGTERM)
    assert second.end()[0] == 0


@pytest.mark.slow
def test_a_password_is_taken_from_a_file_of_ones_own_only_and_told_to_nobody(
    start: Start, postgres: Server, url: str, tmp_path: Path
) -> None:
    secret = postgres.url_with_password(url)
    code, words = start("a", secret).end()
    assert (code, PASSWORD in words) == (2, False)
    assert words.startswith("ebb: --store: others can see the password on a command line: ")
    config = tmp_path / "a" / "ebbtide.toml"
    config.parent.mkdir()
    config.write_text(f'[journal]\nstore = "{secret}"\n')
    config.chmod(0o640)
    code, words = start("a", "").end()
    told = f"ebb: {config}: journal.store: has a password, and the file has mode 0640: chmod 600 {config}\n"
    assert (code, words) == (2, told)
    config.chmod(0o600)
    master = start("a", "")
    with master.asked() as stub:
        submit(stub)
    command = Path(f"/proc/{master.popen.pid}/cmdline").read_bytes()
    kept = b"".join(path.read_bytes() for path in config.parent.rglob("*") if path.is_file() and path != config)
    assert PASSWORD.encode() not in command + kept + master.said().encode()
    assert rows(url, "SELECT count(*) FROM ebbtide.events WHERE kind = 'JobSubmitted'") == [(1,)]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_no_job_that_was_confirmed_is_lost_or_doubled_however_often_leaders_are_killed(
    start: Start, kills: int
) -> None:
    """Each is killed in the middle of submits, which are asked for again as `ebb` does, under the same operation id."""
    leader, promised, asked = start("a"), {}, 0
    leader.ready()
    for kill in range(kills):
        standby = start("ba"[kill % 2])
        with leader.asked() as stub:
            calls = {str(asked + n): stub.Submit.future(request(str(asked + n)), timeout=DEADLINE_S) for n in range(40)}
            asked += 40
            next(iter(calls.values())).result()
            os.kill(leader.popen.pid, signal.SIGKILL)
            for operation, call in calls.items():
                with suppress(grpc.RpcError):
                    promised[operation] = call.result().job_id
        with standby.asked() as stub:
            assert set(promised.values()) <= set(jobs(stub))
            for operation in calls:
                again = submit(stub, operation)
                assert promised.setdefault(operation, again) == again
        leader = standby
    with leader.asked() as stub:
        assert sorted(jobs(stub)) == sorted(promised.values())
    assert len(promised) == len(set(promised.values())) == asked
