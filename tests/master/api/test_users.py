"""Users and tokens, as admins and users change them, on a master in this process that wants tokens."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from ebbtide_core.model.types import HeldBy, StopCause
from ebbtide_core.model.workdir_snapshot import SnapshotRef
from ebbtide_master import loop
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import Identities, User
from ebbtide_master.loop import StoppedError
from ebbtide_master.store.vault import EntryKind
from ebbtide_protos.v1 import agent_pb2, booking_pb2, client_pb2, job_pb2, user_pb2

from tests.master.world import DEADLINE_S, REFUSED, RUNNING, Master, a_master, make_spec, refused

DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND
INVALID, CONFLICT = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
UNAUTHENTICATED, FULL = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED
NO_CHECKPOINT = agent_pb2.REFUSAL_CAUSE_NO_CHECKPOINT
DAY_S = 86_400.0


class Person:
    """Somebody with a token; their methods are the client service's."""

    def __init__(self, master: Master, token: str) -> None:
        self._ask, self.token = master.ask, token

    def __getattr__(self, name: str):
        def call(request):
            return getattr(self._ask, name)(request, metadata=(("authorization", f"Bearer {self.token}"),))

        return call

    async def submit(self, **spec) -> str:
        return (await self.Submit(client_pb2.SubmitRequest(spec=make_spec(**spec)))).job_id


@asynccontextmanager
async def people(home) -> AsyncIterator[tuple[Master, dict[str, Person]]]:
    """A master with an admin, an operator and two users."""
    async with a_master(home, guarded=True) as master:
        found = {}
        for name, role in {"ada": Role.ADMIN, "olga": Role.OPERATOR, "ann": Role.USER, "bob": Role.USER}.items():
            await master.identities.put_user(User(name, role))
            found[name] = Person(master, (await master.identities.issue(name, time.time()))[1])
        yield master, found


async def held(person: Person, job: str) -> client_pb2.Job:
    """The job once the system holds it."""
    async with asyncio.timeout(DEADLINE_S):
        while (found := await person.ShowJob(client_pb2.JobRequest(job_id=job))).held_by != "system":
            await asyncio.sleep(0.005)
    return found


class TestUsers:
    @pytest.mark.parametrize("name", ["", "a b", "1ann", "../x", "ann\n", "x" * 33, "-x", "ann\u202e"])
    async def test_a_name_that_could_be_no_account_is_refused(self, tmp_path, name):
        async with people(tmp_path) as (_, found):
            code, words = await refused(found["ada"].AddUser(user_pb2.AddUserRequest(user=user_pb2.User(name=name))))
            assert (code, "is not a name" in words) == (INVALID, True)

    async def test_one_that_is_there_is_not_added_and_one_that_is_not_is_not_changed(self, tmp_path):
        async with people(tmp_path) as (_, found):
            ada = found["ada"]
            assert (await refused(ada.AddUser(user_pb2.AddUserRequest(user=user_pb2.User(name="ann")))))[0] == CONFLICT
            assert (await refused(ada.SetUser(user_pb2.SetUserRequest(name="eve", role="user"))))[0] == UNKNOWN
            assert (await refused(ada.SetUser(user_pb2.SetUserRequest(name="ann", role="root"))))[0] == INVALID
            assert (await refused(ada.RemoveUser(user_pb2.RemoveUserRequest(name="eve"))))[0] == UNKNOWN

    async def test_the_last_admin_stays_one(self, tmp_path):
        async with people(tmp_path) as (_, found):
            ada = found["ada"]
            lower, remove = user_pb2.SetUserRequest(name="ada", role="user"), user_pb2.RemoveUserRequest(name="ada")
            assert (await refused(ada.SetUser(lower)))[1] == "ada is the last admin: make another user an admin first"
            assert (await refused(ada.RemoveUser(remove)))[0] == CONFLICT
            await ada.SetUser(user_pb2.SetUserRequest(name="olga", role="admin"))
            await ada.SetUser(lower)
            assert (await refused(ada.SetUser(lower)))[0] == DENIED

    async def test_of_two_admins_who_remove_each_other_at_once_one_stays(self, tmp_path):
        async with people(tmp_path) as (master, found):
            await found["ada"].SetUser(user_pb2.SetUserRequest(name="olga", role="admin"))
            calls = [found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="olga")),
                     found["olga"].RemoveUser(user_pb2.RemoveUserRequest(name="ada"))]  # fmt: skip
            await asyncio.gather(*calls, return_exceptions=True)
            assert len([user for user in master.identities.users() if user.role is Role.ADMIN]) == 1

    async def test_who_is_removed_is_out_at_once_what_runs_goes_on_and_what_waits_is_held(self, tmp_path):
        async with people(tmp_path) as (master, found):
            agent = await master.agent_with(found["ada"].token)
            running, waiting = await found["ann"].submit(gpus=2), await found["ann"].submit(gpus=2)
            assert (await agent.receive("launch")).job_id == running
            reply = await found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="ann"))
            assert (reply.tokens, list(reply.running), list(reply.held)) == (1, [running], [waiting])
            assert (await refused(found["ann"].ListJobs(client_pb2.ListJobsRequest())))[0] == UNAUTHENTICATED
            job = await found["ada"].ShowJob(client_pb2.JobRequest(job_id=waiting))
            assert (job.held_by, job.reason) == ("system", "held: user ann was removed")
            await found["olga"].Release(client_pb2.JobRequest(job_id=waiting))
            assert master.store.vault.read(EntryKind.TOKEN).keys() == {
                token.id for user in master.identities.users() for token in master.identities.tokens_of(user.name)
            }

    async def test_a_removal_that_a_master_ended_amid_is_completed_when_it_is_asked_for_again(self, tmp_path):
        async with people(tmp_path) as (master, found):
            waiting, remove = await found["ann"].submit(), user_pb2.RemoveUserRequest(name="ann")
            await master.identities.remove_user("ann")  # so far it had come
            reply = await found["ada"].RemoveUser(remove)
            assert (reply.tokens, list(reply.held)) == (0, [waiting])
            assert not (await found["ada"].RemoveUser(remove)).held
            await found["olga"].Cancel(client_pb2.CancelRequest(job_id=waiting))
            assert (await refused(found["ada"].RemoveUser(remove)))[0] == UNKNOWN

    async def test_what_waits_is_held_before_its_user_is_removed(self, tmp_path, monkeypatch):
        async def killed(name):
            raise StoppedError

        async with people(tmp_path) as (master, found):
            waiting = [await found["ann"].submit() for _ in range(3)]
            monkeypatch.setattr(master.identities, "remove_user", killed)
            await refused(found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="ann")))
            held = {job.id: job.held_by for job in master.cluster.state.unfinished.values()}
            assert held == dict.fromkeys(waiting, HeldBy.SYSTEM)

    async def test_a_swapped_out_job_that_is_being_ended_is_held_when_its_user_is_removed(self, tmp_path):
        async with people(tmp_path) as (master, found):
            ann, swap = found["ann"], job_pb2.SUSPEND_MODE_SWAP
            agent = await master.agent_with(found["ada"].token)
            job = await ann.submit(gpus=1, suspend=swap)
            await agent.receive("launch")
            await agent.report(job, 1, RUNNING)
            await master.becomes(job, "RUNNING", ann.token)
            await ann.Suspend(client_pb2.JobRequest(job_id=job))
            await agent.receive("stop")
            await found["bob"].submit(gpus=2)
            await agent.report(job, 1, agent_pb2.ATTEMPT_PHASE_SWAPPED, swaps=1)
            await agent.receive("launch")
            await ann.Resume(client_pb2.JobRequest(job_id=job))
            await found["olga"].EndNode(client_pb2.EndNodeRequest(node="n1", ends_in_s=30.0))
            swapped = master.cluster.state.unfinished[job].attempts[-1]
            async with asyncio.timeout(DEADLINE_S):
                while swapped.stop.cause is not StopCause.DRAINED:
                    await asyncio.sleep(0.005)
            reply = await found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="ann"))
            assert (list(reply.held), list(reply.running)) == ([job], [job])

    async def test_the_rest_of_an_array_is_not_accepted_from_a_user_who_was_removed_meanwhile(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(loop, "BATCH_S", 0.0)  # each task is a part of its own
        async with people(tmp_path) as (master, found):
            tasks = [client_pb2.ArrayTask(index=index) for index in range(1000)]
            wish = asyncio.create_task(
                refused(found["ann"].Submit(client_pb2.SubmitRequest(spec=make_spec(), tasks=tasks)))
            )
            jobs = master.cluster.state.unfinished
            async with asyncio.timeout(DEADLINE_S):
                while not jobs:
                    await asyncio.sleep(0)
            reply = await found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="ann"))
            assert await wish == (UNAUTHENTICATED, "user ann does not exist any more")
            assert 0 < len(jobs) < len(tasks)
            assert set(reply.held) == set(jobs)
            assert {job.held_by for job in jobs.values()} == {HeldBy.SYSTEM}

    async def test_what_waited_for_its_turn_is_refused_once_its_user_is_removed(self, tmp_path):
        async with people(tmp_path) as (master, found):
            ann, job = found["ann"], client_pb2.JobRequest(job_id=await found["ann"].submit())
            await ann.Hold(job)
            over = await ann.submit()
            await ann.Cancel(client_pb2.CancelRequest(job_id=over))
            turn, taken = master.service.context.throttle.work("ann"), 0
            while not turn.locked():
                await turn.acquire()
                taken += 1
            calls = [
                asyncio.create_task(refused(call))
                for call in (
                    ann.Submit(client_pb2.SubmitRequest(spec=make_spec())),
                    ann.Requeue(client_pb2.RequeueRequest(job_id=over)),
                    ann.Release(job),
                    ann.Resume(job),
                )
            ]
            async with asyncio.timeout(DEADLINE_S):
                while len(turn._waiters or ()) < len(calls):
                    await asyncio.sleep(0.005)
            await found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="ann"))
            for _ in range(taken):
                turn.release()
            assert {code for code, _ in await asyncio.gather(*calls)} == {UNAUTHENTICATED}
            [left] = master.cluster.state.unfinished.values()
            assert left.held_by is not None

    async def test_an_import_says_first_what_it_does_and_does_nothing_twice(self, tmp_path):
        async with people(tmp_path) as (_, found):
            users = [user_pb2.User(name="ann", uid=1001, role="admin"), user_pb2.User(name="zoe", account="z.a")]
            wish = user_pb2.ImportUsersRequest(users=users, dry_run=True)
            changes = []
            for dry in (True, False, False):
                wish.dry_run = dry
                changes.append([one.change for one in (await found["ada"].ImportUsers(wish)).users])
            assert changes == [["changed", "added"], ["changed", "added"], ["unchanged", "unchanged"]]
            known = {user.name: user for user in (await found["ada"].ListUsers(user_pb2.ListUsersRequest())).users}
            assert (known["ann"].role, known["ann"].uid, known["zoe"].account) == ("user", 1001, "z.a")
            wrong = user_pb2.ImportUsersRequest(users=[user_pb2.User(name="ok"), user_pb2.User(name="not ok")])
            assert (await refused(found["ada"].ImportUsers(wrong)))[0] == INVALID
            assert "ok" not in [user.name for user in (await found["ada"].ListUsers(user_pb2.ListUsersRequest())).users]

    async def test_accounts_are_people_of_this_machine(self, tmp_path, monkeypatch):
        import grp
        import pwd

        people_here = [("root", 0, 0), ("daemon", 1, 1), ("kim", 1000, 100), ("lee", 1001, 7), ("nobody", 65534, 100)]
        entries = [pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh")) for name, uid, gid in people_here]
        group = grp.struct_group(("ml", "x", 7, ["kim"]))
        monkeypatch.setattr(pwd, "getpwall", lambda: entries)
        monkeypatch.setattr(grp, "getgrnam", {"ml": group, "none": grp.struct_group(("none", "x", 9, []))}.__getitem__)
        async with people(tmp_path) as (_, found):
            for fields, names in (
                ({"all_accounts": True}, {"kim": 1000, "lee": 1001}),
                ({"group": "ml"}, {"kim": 1000, "lee": 1001}),
                ({"group": "none"}, {}),
            ):
                reply = await found["ada"].ImportUsers(user_pb2.ImportUsersRequest(dry_run=True, **fields))
                assert {one.user.name: one.user.uid for one in reply.users} == names
            unknown = found["ada"].ImportUsers(user_pb2.ImportUsersRequest(group="x"))
            assert (await refused(unknown))[0] == UNKNOWN

    async def test_they_are_as_they_were_after_a_restart(self, tmp_path):
        async with people(tmp_path) as (master, found):
            await found["ada"].SetUser(user_pb2.SetUserRequest(name="ann", uid=1001, account="a.s"))
            before = list(master.identities.users())
        async with a_master(tmp_path, guarded=True) as again:
            assert list(again.identities.users()) == before
            identity = await Person(again, found["ann"].token).WhoAmI(user_pb2.WhoAmIRequest())
            assert (identity.user.account, identity.user.uid) == ("a.s", 1001)


class TestTokens:
    async def test_one_is_told_once_lasts_90_days_and_is_kept_as_a_digest_only(self, tmp_path):
        async with people(tmp_path) as (master, found):
            made = await found["ann"].CreateToken(user_pb2.CreateTokenRequest(label="laptop"))
            assert made.token.expires == pytest.approx(time.time() + 90 * DAY_S, abs=60)
            assert made.text.split("_", 2)[2] not in str(master.store.vault.read(EntryKind.TOKEN))
            listed = (await found["ann"].ListTokens(user_pb2.ListTokensRequest())).tokens
            assert [token.label for token in listed] == ["", "laptop"]
            who = await Person(master, made.text).WhoAmI(user_pb2.WhoAmIRequest())
            assert (who.user.name, who.token.id, who.user.tokens) == ("ann", made.token.id, 2)

    async def test_one_that_is_made_after_the_machine_slept_lasts_as_long_as_was_asked(self, tmp_path):
        async with people(tmp_path) as (master, found):
            master.slept(12 * 3600.0)
            made = await found["ann"].CreateToken(user_pb2.CreateTokenRequest(lifetime_s=3600.0))
            assert made.token.expires == pytest.approx(time.time() + 3600.0, abs=60)
            who = await Person(master, made.text).WhoAmI(user_pb2.WhoAmIRequest())
            assert who.now == pytest.approx(time.time(), abs=60)

    @pytest.mark.parametrize("lifetime_s", [-1.0, float("nan"), float("inf"), 1e18])
    async def test_an_impossible_lifetime_is_refused(self, tmp_path, lifetime_s):
        async with people(tmp_path) as (_, found):
            wish = found["ann"].CreateToken(user_pb2.CreateTokenRequest(lifetime_s=lifetime_s))
            assert (await refused(wish))[0] == INVALID

    async def test_there_are_only_so_many_and_expired_ones_do_not_count(self, tmp_path):
        async with people(tmp_path) as (master, found):
            past = time.time() - 10
            for _ in range(99):
                await master.identities.issue("ann", past, past + 1)
            await found["ann"].CreateToken(user_pb2.CreateTokenRequest())
            assert len(list(master.identities.tokens_of("ann"))) == 2
            for _ in range(98):
                await master.identities.issue("ann", past)
            assert (await refused(found["ann"].CreateToken(user_pb2.CreateTokenRequest())))[0] == FULL

    async def test_ones_own_are_revoked_by_oneself_and_anybodys_by_an_admin(self, tmp_path):
        async with people(tmp_path) as (master, found):
            mine, theirs = (next(master.identities.tokens_of(name)).id for name in ("ann", "bob"))
            assert (await refused(found["ann"].RevokeToken(user_pb2.RevokeTokenRequest(id=theirs))))[0] == DENIED
            assert (await refused(found["ann"].RevokeToken(user_pb2.RevokeTokenRequest(id="0"))))[0] == UNKNOWN
            await found["ada"].RevokeToken(user_pb2.RevokeTokenRequest(id=theirs))
            await found["ann"].RevokeToken(user_pb2.RevokeTokenRequest(id=mine))
            for name in ("ann", "bob"):
                assert (await refused(found[name].WhoAmI(user_pb2.WhoAmIRequest())))[0] == UNAUTHENTICATED

    @pytest.mark.parametrize("ended_by", ["a revocation", "its expiry", "a removal", "a lower role"])
    async def test_an_open_stream_ends_with_it(self, tmp_path, ended_by):
        async with people(tmp_path) as (master, found):
            expires = time.time() + 5.0 if ended_by == "its expiry" else None
            token, text = await master.identities.issue("olga", time.time(), expires)
            stream = Person(master, text).WatchEvents(client_pb2.WatchEventsRequest(follow=True))
            assert (await stream.read()).kind == "MasterStarted"
            match ended_by:
                case "a revocation":
                    await found["ada"].RevokeToken(user_pb2.RevokeTokenRequest(id=token.id))
                case "a removal":
                    await found["ada"].RemoveUser(user_pb2.RemoveUserRequest(name="olga"))
                case "a lower role":
                    await found["ada"].SetUser(user_pb2.SetUserRequest(name="olga", role="user"))
            async with asyncio.timeout(DEADLINE_S):
                assert await stream.code() == UNAUTHENTICATED
            assert not master.identities._standings


class TestWhatIsOthers:
    async def test_a_queue_is_seen_but_not_what_runs_in_it(self, tmp_path):
        async with people(tmp_path) as (_, found):
            secrets = {
                "command": ["run", "CANARY"], "workdir": "/CANARY", "env": {"K": "CANARY"}, "output": "CANARY.out",
                "log_rules": [job_pb2.LogRule(pattern="CANARY", action=job_pb2.LOG_ACTION_NOTIFY)],
                "resume_args": ["CANARY"], "scripts": {"CANARY": "0"}, "python_env": "/CANARY",
            }  # fmt: skip
            job = await found["ann"].submit(name="train", **secrets)
            bob, ann, olga = found["bob"], found["ann"], found["olga"]
            one, all_jobs = client_pb2.JobRequest(job_id=job), client_pb2.ListJobsRequest()
            for person, tells in ((bob, False), (ann, True), (olga, True)):
                shown = [str(await person.ShowJob(one)), str(await person.ListJobs(all_jobs))]
                shown += [str(await person.ShowStory(one))]
                shown += [str([event async for event in person.WatchEvents(client_pb2.WatchEventsRequest())])]
                shown += [str(await person.QueryEvents(client_pb2.QueryEventsRequest(job_id=job)))]
                shown += [str(await person.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job])).read())]
                assert ["CANARY" in text for text in shown] == [tells] * len(shown)
            seen = await bob.ShowJob(one)
            assert (seen.user, seen.spec.name, seen.spec.gpus_min.numerator, seen.reason != "") == (
                "ann",
                "train",
                1,
                True,
            )
            assert "submitted by ann" in (await bob.ShowStory(one)).events[0].text

    async def test_why_a_job_is_held_is_its_users_even_if_it_is_asked_when_it_starts(self, tmp_path):
        async with people(tmp_path) as (master, found):
            agent = await master.agent_with(found["ada"].token)
            job = await found["ann"].submit()
            await agent.receive("launch")
            refusal = {"refusal": "no checkpoint in /home/ann/CANARY verifies", "refusal_cause": NO_CHECKPOINT}
            await agent.report(job, 1, REFUSED, **refusal)
            await held(found["ada"], job)
            what_if = client_pb2.ExplainRequest(job_id=job, priority=5)
            for person, tells in (("bob", False), ("ann", True), ("olga", True)):
                told = await found[person].Explain(what_if)
                for words in (told.reason, told.forecast.basis, told.what_if.basis):
                    assert ("CANARY" in words) is tells
            assert "CANARY" not in str(await found["bob"].Explain(what_if))

    async def test_a_task_of_an_array_is_its_owners_too(self, tmp_path):
        async with people(tmp_path) as (_, found):
            tasks = [client_pb2.ArrayTask(index=index, params={"lr": "CANARY"}) for index in range(2)]
            wish = client_pb2.SubmitRequest(spec=make_spec(command=["x", "{lr}"]), tasks=tasks)
            array = (await found["ann"].Submit(wish)).job_id
            for id in (array, f"{array}.1", f"{array}.0-1"):
                assert (await refused(found["bob"].Cancel(client_pb2.CancelRequest(job_id=id))))[0] == DENIED
                assert "CANARY" not in str(await found["bob"].ShowJob(client_pb2.JobRequest(job_id=id)))
            assert (await refused(found["bob"].Cancel(client_pb2.CancelRequest(job_id=f"{array}9"))))[0] == UNKNOWN
            await found["olga"].Cancel(client_pb2.CancelRequest(job_id=array))

    async def test_a_snapshot_is_for_whoever_has_the_files_not_for_who_knows_its_name(self, tmp_path, monkeypatch):
        async with people(tmp_path) as (master, found):
            snapshots = master.service.context.snapshots
            snapshots._owners["a" * 64] = {"ann"}
            monkeypatch.setattr(type(snapshots), "_path", lambda self, digest: tmp_path)
            message = job_pb2.Snapshot(digest="a" * 64, bytes=10)
            assert snapshots.has(SnapshotRef("a" * 64, 10), "ann")
            assert (await found["ann"].FindSnapshot(message)).present
            assert not (await found["bob"].FindSnapshot(message)).present
            wish = client_pb2.SubmitRequest(spec=make_spec(snapshot=message))
            assert (await found["ann"].Submit(wish)).job_id
            assert (await refused(found["bob"].Submit(wish)))[0] == CONFLICT

    async def test_what_an_operator_runs_once_more_stays_whose_it_was(self, tmp_path):
        async with people(tmp_path) as (_, found):
            job = await found["ann"].submit()
            await found["ann"].Cancel(client_pb2.CancelRequest(job_id=job))
            again = await found["olga"].Requeue(client_pb2.RequeueRequest(job_id=job))
            assert (again.again_of, again.user) == (job, "ann")

    async def test_gpus_are_reserved_for_oneself_and_for_others_by_operators(self, tmp_path):
        async with people(tmp_path) as (master, found):
            await master.agent_with(found["ada"].token)
            start = time.time() + 7200
            wish = booking_pb2.ReserveGpusRequest(user="bob", by="bob", gpus=1, start=start, end=start + 3600)
            assert (await refused(found["ann"].ReserveGpus(wish)))[0] == DENIED
            made = await found["olga"].ReserveGpus(wish)
            assert (made.user, made.by) == ("bob", "olga")
            cancel = booking_pb2.CancelReservationRequest(reservation_id=made.reservation_id)
            assert (await refused(found["ann"].CancelReservation(cancel)))[0] == DENIED
            assert (await found["bob"].CancelReservation(cancel)).user == "bob"


async def test_a_claim_of_being_somebody_else_counts_for_nothing(tmp_path):
    async with people(tmp_path) as (_, found):
        wish = client_pb2.SubmitRequest(spec=make_spec(), user="ada")
        job = (await found["ann"].Submit(wish)).job_id
        assert (await found["ann"].ShowJob(client_pb2.JobRequest(job_id=job))).user == "ann"


async def test_a_user_of_an_older_version_has_no_uid(tmp_path):
    async with a_master(tmp_path) as master:
        await asyncio.wrap_future(master.store.vault.put(EntryKind.USER, {"ann": '{"role": "user", "account": ""}'}))
        assert Identities(master.store.vault).user("ann") == User("ann", Role.USER)
