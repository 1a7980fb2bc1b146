"""`ebb dashboard` beside other masters than its own."""

from pathlib import Path

import grpc
import pytest
from ebbtide_cli.home import Home, write_record
from ebbtide_cli.masters.logins import Login, trying
from ebbtide_cli.verbs import dashboard
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import user_pb2
from ebbtide_web.reach import Master
from ebbtide_web.serve import listen

from tests.client.runs import Ebb
from tests.client.scripted_master import ScriptedMaster, serving


class KnowingMaster(ScriptedMaster):
    """Knows everybody."""

    def WhoAmI(self, request: user_pb2.WhoAmIRequest, context: grpc.ServicerContext) -> user_pb2.Identity:
        self._note("WhoAmI", request, context)
        return user_pb2.Identity()


async def test_a_dashboard_whose_master_restarts_never_asks_the_master_of_a_login_instead(home, monkeypatch):
    monkeypatch.delenv("EBB_HOME")
    own, other = KnowingMaster(), KnowingMaster()
    with serving(own) as address, serving(other) as elsewhere:
        local = Home(Path(address.removeprefix("unix:")))
        monkeypatch.setattr(Home, "current", classmethod(lambda cls: local))
        write_record(local.master_record, Identity.own().to_json())
        with trying(elsewhere, Login("ebb_t1_secret")):
            pass
        found = dashboard._answering(None)
        local.master_record.unlink()  # as the master does when it stops
        listening = listen(None)
        master = Master(dashboard._settings(local, found, None, listening).opener)
        listening.socket.close()
        await master.call("WhoAmI", user_pb2.WhoAmIRequest(), "the local admin's")
        await master.close()
    assert (len(own.sent("WhoAmI")), len(other.sent("WhoAmI"))) == (2, 0)


def runs(home: Path, **facts: str) -> None:
    """Have a dashboard run in this home."""
    record = {**Identity.own().to_json(), "url": "http://127.0.0.1:1", **facts}
    write_record(Home(home).dashboard_record, record)


def leads_there(ebb: Ebb, *options: str) -> bool:
    return str(ebb("dashboard", "--link", "--json", *options).json["url"]).startswith("http://127.0.0.1:1/login#code=")


@pytest.mark.parametrize("source", ["--master", "EBB_MASTER"])
def test_who_names_another_master_is_not_led_to_the_dashboard_that_runs(home, ebb, monkeypatch, source):
    runs(home, master="lab1.example:7077,lab2.example:7077")

    def naming(master: str) -> tuple[str, ...]:
        if source == "--master":
            return "--master", master
        monkeypatch.setenv("EBB_MASTER", master)
        return ()

    assert leads_there(ebb)
    assert leads_there(ebb, *naming("lab2.example:7077"))
    refused = ebb("dashboard", "--link", *naming("other.example:7077"))
    assert (refused.code, refused.complaint) == (
        2,
        f"dashboard: {source}: the dashboard that runs in EBB_HOME {home} shows the master at lab1.example:7077,"
        "lab2.example:7077: end that one, or start another one with --port",
    )


def test_the_master_of_ebb_home_may_be_named_by_its_socket_or_by_its_port(home, ebb):
    write_record(Home(home).master_record, {**Identity.own().to_json(), "host": "127.0.0.1", "port": 7077})
    runs(home, master=f"unix:{home.resolve()}")
    assert leads_there(ebb, "--master", "localhost:7077")
    assert leads_there(ebb, "--master", f"unix:{home}")
    assert ebb("dashboard", "--link", "--master", "localhost:7078").code == 2


def test_a_dashboard_of_an_older_version_which_does_not_say_whose_it_is_is_led_to(home, ebb):
    runs(home)
    assert leads_there(ebb, "--master", "other.example:7077")
