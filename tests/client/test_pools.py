"""What `ebb` sends and shows of pools."""

from ebbtide_protos.v1 import client_pb2

from tests.client.runs import run_on_terminal
from tests.client.scripted_master import make_job, make_node


def two_pools(master) -> None:
    master.pools += [
        client_pb2.Pool(name="default", policy="fitgpp", fitting="best"),
        client_pb2.Pool(name="a100", policy="priority", fitting="worst"),
        client_pb2.Pool(name="old"),
    ]


def test_submit_and_set_send_the_pool_only_if_it_is_named(ebb, master):
    ebb("submit", "--pool", "a100", "--", "train")
    ebb("submit", "--", "train")
    assert [request.spec.pool for request in master.sent("Submit")] == ["a100", ""]
    master.add(make_job())
    ebb("set", "17", "--pool", "a100")
    ebb("set", "17", "--priority", "5")
    first, second = master.sent("Change")
    assert (first.pool, first.HasField("priority"), second.HasField("pool")) == ("a100", False, False)


def test_ls_shows_the_pool_where_jobs_are_in_others_than_the_default_one(ebb, master):
    master.add(make_job(pool="default"))
    assert "POOL" not in ebb("ls").out
    master.add(make_job("18", pool="a100"))
    titles, first, second = ebb("ls").out.splitlines()
    assert titles.split()[6] == "POOL"
    assert ("default" in first, "a100" in second) == (True, True)
    narrow = run_on_terminal("ls", columns=70).out
    assert "a100" not in narrow
    assert "PENDING" in narrow


def test_show_names_the_pool_of_now_and_the_next(ebb, master):
    master.add(make_job(pool="default", moves_to="a100"))
    assert "default, soon a100" in ebb("show", "17").out
    shown = ebb("show", "17", "--json").json
    assert (shown["pool"], shown["moves_to"]) == ("default", "a100")


def test_nodes_are_grouped_by_pool_where_there_are_several(ebb, master):
    master.nodes += [make_node(name="ws1", pool="default"), make_node(name="ws2", pool="a100", moves_to="default")]
    assert "Pool" not in ebb("nodes").out
    two_pools(master)
    heads = [line for line in ebb("nodes").out.splitlines() if line.startswith(("Pool", "ws"))]
    assert heads[0].startswith("Pool default: fitgpp, best fit; ")
    assert heads[1].startswith("ws1")
    assert heads[2].startswith("Pool a100: priority, worst fit; ")
    assert "(to be in pool default once nothing runs here)" in heads[3]
    assert heads[4] == "Pool old: not configured any more: nothing is started here; 0 of 0 GPUs idle"
    assert [node["pool"] for node in ebb("nodes", "--json").json] == ["default", "a100"]
