"""`ebb dashboard` beside other masters than its own."""

from pathlib import Path

import grpc
from ebbtide_cli.home import Home, write_record
from ebbtide_cli.masters.logins import Login, trying
from ebbtide_cli.verbs import dashboard
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import user_pb2
from ebbtide_web.reach import Master
from ebbtide_web.serve import listen

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
        settings_of = dashboard._settings(local, None)
        local.master_record.unlink()  # as the master does when it stops
        listening = listen(None)
        master = Master(settings_of(listening).opener)
        listening.socket.close()
        await master.call("WhoAmI", user_pb2.WhoAmIRequest(), "the local admin's")
        await master.close()
    assert (len(own.sent("WhoAmI")), len(other.sent("WhoAmI"))) == (2, 0)
