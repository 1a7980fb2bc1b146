"""As which accounts jobs run, as far as the master says, and what becomes of those that no node can run."""

from pathlib import Path

from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import Identities, User
from ebbtide_master.identity.local import own_account
from ebbtide_master.identity.running_as import AGENTS_OWN, SubmitterAccount, accounts_of
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.master.world import REFUSED, RUNNING, a_master

WHY = "account ann has uid 1003 here, and 1004 as the master knows it"


async def test_a_job_runs_as_the_account_of_its_user(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    identities = Identities(store.vault)
    await identities.put_user(User("ann", Role.USER, "a.smith", 1004))
    await identities.put_user(User("bob", Role.USER))
    account = accounts_of(identities, personal=True)
    assert [account(user) for user in ("ann", "bob", "unknown")] == [
        SubmitterAccount("a.smith", 1004), SubmitterAccount("bob"), SubmitterAccount("unknown"),
    ]  # fmt: skip
    store.close()


def test_where_all_is_on_one_machine_the_masters_account_has_its_jobs_run_by_agents_as_themselves(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    identities, own = Identities(store.vault), own_account()
    assert accounts_of(identities, personal=True)(own) == AGENTS_OWN
    assert accounts_of(identities, personal=False)(own) == SubmitterAccount(own)
    store.close()


async def test_a_launch_names_the_account_and_its_uid(tmp_path: Path) -> None:
    async with a_master(tmp_path, accounts=lambda user: SubmitterAccount(f"unix-{user}", 1004)) as master:
        agent = await master.agent("n1")
        await master.submit()
        launch = await agent.receive("launch")
        assert (launch.account, launch.uid, launch.HasField("uid")) == ("unix-ann", 1004, True)


async def test_a_node_without_the_account_is_passed_over_and_the_reason_is_told(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        first = await master.agent("n1")
        job = await master.submit()
        await first.receive("launch")
        cause = agent_pb2.REFUSAL_CAUSE_NO_ACCOUNT
        await first.report(job, 1, REFUSED, refusal=WHY, refusal_cause=cause)
        waiting = await master.becomes(job, "PENDING")
        while not waiting.excluded_nodes:
            waiting = await master.show(job)
        assert dict(waiting.excluded_nodes) == {"n1": WHY}
        told = await master.ask.Explain(client_pb2.ExplainRequest(job_id=job))
        assert [(one.node, WHY in one.obstacle) for one in told.nodes] == [("n1", True)]
        second = await master.agent("n2")
        assert (await second.receive("launch")).attempt == 2
        await second.report(job, 2, RUNNING)
        await master.becomes(job, "RUNNING")
