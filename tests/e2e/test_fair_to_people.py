"""What people share: GPUs kept for one of them, GPUs that nobody uses, and an account of who had what."""

import pytest

from tests.e2e.cluster import ANY_ACCOUNT, Cluster, wait_for

pytestmark = pytest.mark.slow
SLEEP = ("--idle-ok", "--", "sleep", "600")


def test_a_reserved_gpu_is_its_users_an_idle_one_is_taken_back_and_the_account_adds_up(
    idle_cluster: Cluster,
) -> None:
    cluster = idle_cluster
    (cluster.home / "ebbtide.toml").write_text('[idle]\nafter = "3s"\naction = "suspend"\nwarning = "1s"\n')
    cluster.up_for_people()
    cluster.add_workstation("ws1", "2xA100-40GB", None, *ANY_ACCOUNT)
    bob = Cluster(cluster.home)
    bob.environment["EBB_TOKEN"] = cluster.add_person("bob")
    cluster.ebb("reserve-gpus", "--gpus", "1", "--for", "1h", "--user", "bob")
    [reserved] = cluster.facts("reservations")[0]["gpus"]

    mine, waiting = cluster.submit(*SLEEP), cluster.submit(*SLEEP)
    cluster.wait_for_state(mine, "RUNNING")
    shown = cluster.show(waiting)
    assert shown["state"] == "PENDING"
    assert "1 GPU is reserved for bob" in shown["reason"]
    assert "reserved for bob" in cluster.ebb("explain", waiting).out

    his = bob.submit(*SLEEP)
    shown = cluster.wait_for_state(his, "RUNNING")
    assert shown["gpu_uuids"] == [reserved["uuid"]]
    assert cluster.facts("reservations")[0]["gpus"][0]["job_ids"] == [his]
    cluster.ebb("cancel", his, "--now", "--wait", code=None)
    cluster.ebb("reserve-gpus", "--cancel", "1")
    cluster.wait_for_state(waiting, "RUNNING")
    cluster.ebb("cancel", mine, waiting, "--now")

    idle = cluster.submit("--grace", "1s", "--", "sleep", "600")
    shown = cluster.wait_for_state(idle, "SUSPENDED")
    assert shown["held_by"] == "system"
    assert shown["reason"].startswith("idle on 1 GPU for")
    cluster.ebb("cancel", idle)

    def everything_is_free() -> bool:
        return all(gpu["share_allocated"] == 0 for node in cluster.facts("nodes") for gpu in node["gpus"])

    wait_for("everything is free", everything_is_free)
    usage = cluster.facts("usage", "--since", "1h")
    accounts = {account["user"]: account for account in usage["accounts"]}
    assert usage["problems"] == []
    assert accounts["bob"]["jobs"] == 1
    assert sum(account["jobs"] for account in accounts.values()) == usage["total"]["jobs"] == 4
    assert usage["total"]["idle_gpu_s"] >= 3
    assert usage["gpus"]["allocated_gpu_s"] == pytest.approx(usage["total"]["allocated_gpu_s"])
    assert usage["gpus"]["known_gpu_s"] == pytest.approx(
        sum(usage["gpus"][f"{part}_gpu_s"] for part in ("allocated", "idle", "foreign", "unavailable"))
    )
