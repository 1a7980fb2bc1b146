"""What clients may read: jobs as they change, events, and logs."""

import asyncio
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core import events as e
from ebbtide_master.api import journal
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_protos import NODE_AWAY_KEY
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import (
    EXITED,
    FREED,
    RUNNING,
    STEPPED_ASIDE,
    Agent,
    Master,
    a_master,
    refused,
    wish,
)

UNKNOWN = grpc.StatusCode.NOT_FOUND


class TestWatchJobs:
    async def test_a_watched_job_is_told_whenever_it_changes_until_it_is_finished(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.submit(hold=True)
            states: list[int] = []
            turns: list[Any] = [
                lambda: wish(master, "Release", job),
                lambda: agent.report(job, 1, RUNNING),
                lambda: agent.report(job, 1, FREED),
            ]
            async for shown in master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job, job])):
                if shown.state not in states:
                    states.append(shown.state)
                    if turns:
                        await turns.pop(0)()
            names = ("PENDING", "STARTING", "RUNNING", "COMPLETED")
            assert states == [job_pb2.JobState.Value(f"JOB_STATE_{name}") for name in names]

    async def test_without_names_all_unfinished_jobs_are_told_and_new_ones(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            over, first = await master.submit(), await master.submit()
            await wish(master, "Cancel", over)
            stream = master.ask.WatchJobs(client_pb2.WatchJobsRequest())
            assert (await stream.read()).job_id == first
            second = await master.submit()
            assert (await stream.read()).job_id == second
            stream.cancel()

    async def test_a_job_that_does_not_exist_is_not_found(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit()
            stream = master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job, "99"]))
            assert await refused(stream.read()) == (UNKNOWN, "job 99 does not exist")

    async def test_watchers_with_nothing_to_tell_do_not_keep_the_master_busy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ebbtide_master.loop.ANSWERS_S", 60.0)
        async with a_master(tmp_path) as master:
            job = await master.submit()
            streams = [master.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job])) for _ in range(3)]
            for stream in streams:
                await stream.read()
            asked = 0
            handle = master.service.loop._handle_some

            async def counted(batch: Any) -> None:
                nonlocal asked
                asked += 1
                await handle(batch)

            master.service.loop._handle_some = counted  # type: ignore[method-assign]
            await master.show(job)
            await asyncio.sleep(0.05)
            assert asked == 1
            for stream in streams:
                stream.cancel()


class TestEvents:
    async def test_the_journal_is_read_from_a_line_on(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit()
            await wish(master, "Cancel", job)
            request = client_pb2.WatchEventsRequest(after_sequence=1)
            events = [event async for event in master.ask.WatchEvents(request)]
            assert [event.sequence for event in events] == [2, 3]
            assert [event.kind for event in events] == ["JobSubmitted", "CancelRequested"]
            assert {event.job_id for event in events} == {job}
            assert events[1].text == "user asked to cancel it (until then: waiting for 1 GPU: no node is connected)"
            assert await master.kinds(after=2**64 - 1) == []

    async def test_the_journal_is_read_from_a_time_on_or_its_last_lines(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            for _ in range(3):
                await master.submit(hold=True)
            events = [event async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest())]
            times = sorted({event.time for event in events})
            for asked, expected in [
                ({"tail": 2}, events[-2:]),
                ({"tail": 99}, events),
                *(({"since": time}, [event for event in events if event.time >= time]) for time in times),
                ({"since": times[-1] + 1}, []),
                ({"since": times[0], "tail": 1}, events[-1:]),
            ]:
                request = client_pb2.WatchEventsRequest(**asked)
                assert [event async for event in master.ask.WatchEvents(request)] == expected, asked

    async def test_what_was_recorded_while_the_clock_was_ahead_is_found_by_its_time(self, tmp_path: Path) -> None:
        with closing(SqliteStore(tmp_path / "journal.db")) as store:
            for epoch, time in enumerate((1e9, 3e9, 1.1e9, 1.2e9, 1.3e9), start=1):
                store.append([(time, e.MasterStarted(epoch))]).result(30)
        async with a_master(tmp_path) as master:
            for since, lines in {2.5e9: [2], 1.15e9: [2, 4, 5, 6], 4e9: []}.items():
                watched = master.ask.WatchEvents(client_pb2.WatchEventsRequest(since=since))
                assert [event.sequence async for event in watched] == lines
            for since, until, lines in ((2.5e9, 0.0, [2]), (0.0, 1.15e9, [3, 1]), (1.15e9, 1.25e9, [4])):
                query = client_pb2.QueryEventsRequest(since=since, until=until)
                assert [event.sequence for event in (await master.ask.QueryEvents(query)).events] == lines

    async def test_new_lines_follow_as_they_come(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            stream = master.ask.WatchEvents(client_pb2.WatchEventsRequest(follow=True))
            assert (await stream.read()).kind == "MasterStarted"
            for number in range(3):
                job = await master.submit(hold=True)
                event = await stream.read()
                assert (event.kind, event.job_id, event.sequence) == ("JobSubmitted", job, number + 2)
            stream.cancel()

    async def test_events_are_queried_backwards_in_pages_by_time_kind_job_and_node(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            await master.agent("n1")
            jobs = [await master.submit(hold=True) for _ in range(5)]
            await wish(master, "Cancel", jobs[1])
            all_of_them = [event async for event in master.ask.WatchEvents(client_pb2.WatchEventsRequest())]

            async def found(**asked: Any) -> client_pb2.QueryEventsReply:
                return await master.ask.QueryEvents(client_pb2.QueryEventsRequest(**asked))

            newest = await found()
            assert (list(newest.events), newest.older_before) == (all_of_them[::-1], 0)
            assert newest.last_sequence == all_of_them[-1].sequence
            assert not (await found(after_sequence=newest.last_sequence)).events
            assert [event.kind for event in (await found(node="n1")).events] == ["NodeRegistered"]
            assert [event.kind for event in (await found(job_id=jobs[1])).events] == ["CancelRequested", "JobSubmitted"]
            submitted = await found(kinds=["JobSubmitted"], limit=3)
            assert [event.job_id for event in submitted.events] == jobs[:1:-1]
            rest = await found(kinds=["JobSubmitted"], before_sequence=submitted.older_before)
            assert ([event.job_id for event in rest.events], rest.older_before) == (jobs[1::-1], 0)
            assert list((await found(after_sequence=all_of_them[-2].sequence)).events) == all_of_them[:-2:-1]
            for time in sorted({event.time for event in all_of_them}):
                later = [event for event in all_of_them[::-1] if event.time >= time]
                assert list((await found(since=time)).events) == later
                assert list((await found(until=time)).events) == [e for e in all_of_them[::-1] if e.time <= time]
            assert list((await found(until=1.0)).events) == list((await found(since=2e12)).events) == []
            assert list((await found(before_sequence=2**64 - 1, limit=1)).events) == all_of_them[-1:]

    async def test_a_query_looks_through_so_many_lines_and_says_how_far_it_came(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journal, "SEARCHED_AT_ONCE", 4)
        async with a_master(tmp_path) as master:
            first = await master.submit(hold=True)
            for _ in range(9):
                await master.submit(hold=True)
            query, seen, pages = client_pb2.QueryEventsRequest(kinds=["MasterStarted"]), list[str](), 0
            while pages == 0 or query.before_sequence:
                reply = await master.ask.QueryEvents(query)
                seen += [event.kind for event in reply.events]
                assert (reply.searched_to > 0) == (reply.older_before > 0)
                query.before_sequence, pages = reply.older_before, pages + 1
            assert (seen, pages) == (["MasterStarted"], 3)
            of_one = await master.ask.QueryEvents(client_pb2.QueryEventsRequest(job_id=first))
            assert ([event.job_id for event in of_one.events], of_one.older_before) == ([first], 0)

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"limit": 501}, "limit: 501 events are over the limit of 500"),
            ({"since": math.nan}, "since: is not a time in Unix seconds"),
            ({"until": math.inf}, "until: is not a time in Unix seconds"),
            ({"since": -1.0}, "since: is not a time in Unix seconds"),
            ({"kinds": ["Nothing"]}, "kinds: there is no kind of event 'Nothing'"),
            ({"kinds": ["JobSubmitted"] * 500}, "kinds: 500 kinds are over the limit"),
            ({"job_id": "a\0b"}, "job: is not a text of at most 64 printable characters"),
            ({"node": "n" * 65}, "node: is not a text of at most 64 printable characters"),
        ],
    )
    async def test_a_query_that_means_nothing_is_refused_by_name(
        self, tmp_path: Path, asked: dict[str, Any], words: str
    ) -> None:
        async with a_master(tmp_path) as master:
            code, told = await refused(master.ask.QueryEvents(client_pb2.QueryEventsRequest(**asked)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert told.startswith(words)

    async def test_a_story_has_every_event_of_one_job(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent)
            await master.submit()
            await agent.report(job, 1, EXITED)
            await master.becomes(job, "COMPLETED")
            story = (await master.ask.ShowStory(client_pb2.JobRequest(job_id=job))).events
            kinds = ["JobSubmitted", "AttemptPlaced", "AttemptStarted", "AttemptExited"]
            assert [event.kind for event in story] == kinds
            assert (await refused(master.ask.ShowStory(client_pb2.JobRequest(job_id="99"))))[0] is UNKNOWN

    async def test_a_waiting_job_is_told_why_and_for_how_long(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            running = await master.running(agent)
            explanation = await master.ask.Explain(client_pb2.ExplainRequest(job_id=running))
            assert (explanation.state, explanation.HasField("ahead")) == ("RUNNING", False)
            first, second = await master.submit(gpus=2), await master.submit(gpus=2)
            explanation = await master.ask.Explain(client_pb2.ExplainRequest(job_id=second))
            assert (explanation.job_id, explanation.state, explanation.ahead) == (second, "PENDING", 1)
            explanation = await master.ask.Explain(client_pb2.ExplainRequest(job_id=first))
            assert [view.node for view in explanation.nodes] == ["n1"]
            assert explanation.basis
            assert (await refused(master.ask.Explain(client_pb2.ExplainRequest(job_id="99"))))[0] is UNKNOWN


class TestLogs:
    async def serve(self, agent: Agent, logs: dict[int, bytes], over: set[int]) -> None:
        """Answer the master's requests for logs, three bytes at a time, as a node does."""
        while True:
            read = await agent.receive("read_log")
            data = logs.get(read.attempt, b"")[read.offset : read.offset + 3]
            end = read.attempt in over and read.offset + len(data) >= len(logs.get(read.attempt, b""))
            if not data and not end:
                await asyncio.sleep(0.01)
            await agent.send(log=agent_pb2.LogData(request_id=read.request_id, data=data, end=end))

    def read(self, master: Master, job: str, **options: Any) -> Any:
        return master.ask.ReadLogs(client_pb2.ReadLogsRequest(job_id=job, **options))

    async def two_attempts(self, master: Master, agent: Agent) -> str:
        """A job whose second attempt runs."""
        job = await master.running(agent)
        await wish(master, "Suspend", job)
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await master.becomes(job, "SUSPENDED")
        await wish(master, "Resume", job)
        await agent.receive("launch")
        await agent.report(job, 2, RUNNING)
        await master.becomes(job, "RUNNING")
        return job

    async def test_the_logs_of_all_attempts_come_in_order(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await self.two_attempts(master, agent)
            serving = asyncio.create_task(self.serve(agent, {1: b"first\n", 2: b"second\n"}, {1}))
            chunks = [(chunk.attempt, chunk.data) async for chunk in self.read(master, job)]
            assert b"".join(data for attempt, data in chunks if attempt == 1) == b"first\n"
            assert b"".join(data for _, data in chunks) == b"first\nsecond\n"
            only = [chunk.data async for chunk in self.read(master, job, attempt=2)]
            assert b"".join(only) == b"second\n"
            serving.cancel()

    async def test_a_followed_log_goes_on_over_attempts_until_the_job_is_finished(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.submit(hold=True)
            stream = self.read(master, job, follow=True)
            reading = asyncio.create_task(self.collect(stream))
            await wish(master, "Release", job)
            await agent.receive("launch")
            await agent.report(job, 1, RUNNING)
            await master.becomes(job, "RUNNING")
            await wish(master, "Suspend", job)
            logs, over = {1: b"begin ", 2: b"end"}, set[int]()
            serving = asyncio.create_task(self.serve(agent, logs, over))
            logs[1] += b"more "
            over.add(1)
            await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
            await master.becomes(job, "SUSPENDED")
            await wish(master, "Resume", job)
            await agent.report(job, 2, RUNNING)
            await master.becomes(job, "RUNNING")
            over.add(2)
            await agent.report(job, 2, FREED)
            async with asyncio.timeout(30):
                assert await reading == b"begin more end"
            serving.cancel()

    async def test_the_last_lines_are_those_of_all_attempts_and_what_follows_is_read_from_there(
        self, tmp_path: Path
    ) -> None:
        """The nodes are asked where the last lines begin, the newest attempt first."""
        edges = {(2, "tail"): (4, 1), (1, "tail"): (6, 2), (2, "since"): (4, 0)}

        async def serve(agent: Agent) -> None:
            while True:
                read = await agent.receive("read_log")
                log = {1: b"a\nb\nc\nd\n", 2: b"e\nf\ng\n"}[read.attempt]
                answer = agent_pb2.LogData(request_id=read.request_id, end=True, data=log[read.offset :])
                if read.tail or read.since:
                    offset, lines = edges[read.attempt, "tail" if read.tail else "since"]
                    answer = agent_pb2.LogData(request_id=read.request_id, next=offset, lines=lines)
                await agent.send(log=answer)

        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await self.two_attempts(master, agent)
            serving = asyncio.create_task(serve(agent))
            chunks = [(chunk.attempt, chunk.data) async for chunk in self.read(master, job, tail=3)]
            assert chunks == [(1, b"d\n"), (2, b"e\nf\ng\n")]
            assert [chunk.data async for chunk in self.read(master, job, tail=1)] == [b"g\n"]
            shown = await master.ask.ShowJob(client_pb2.JobRequest(job_id=job))
            since = (shown.attempts[0].end_time + shown.attempts[1].placed_time) / 2 + 1e-9
            assert [chunk.data async for chunk in self.read(master, job, since=since)] == [b"g\n"]
            assert await self.collect(self.read(master, job)) == b"a\nb\nc\nd\ne\nf\ng\n"
            serving.cancel()

    async def collect(self, stream: Any) -> bytes:
        return b"".join([chunk.data async for chunk in stream])

    async def test_a_node_that_goes_away_while_its_log_is_read_is_named(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent)
            reading = asyncio.create_task(refused(self.collect(self.read(master, job, follow=True))))
            await agent.receive("read_log")
            agent.vanish()
            code, words = await reading
            assert (code, words) == (grpc.StatusCode.UNAVAILABLE, "node n1 went away")
            await master.until_node("n1", "down")
            code, words = await refused(self.collect(self.read(master, job)))
            assert (code, words) == (grpc.StatusCode.UNAVAILABLE, "node n1 is not connected")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await self.collect(self.read(master, job))
            assert NODE_AWAY_KEY in dict(error.value.trailing_metadata())

    async def test_a_log_that_the_node_cannot_read_is_an_error_in_its_words(self, tmp_path: Path) -> None:
        async with a_master(tmp_path) as master:
            agent = await master.agent("n1")
            job = await master.running(agent)
            reading = asyncio.create_task(refused(self.collect(self.read(master, job))))
            request = await agent.receive("read_log")
            await agent.send(log=agent_pb2.LogData(request_id=request.request_id + 7, data=b"not asked for"))
            await agent.send(log=agent_pb2.LogData(request_id=request.request_id, error="the log is gone"))
            assert await reading == (grpc.StatusCode.UNAVAILABLE, f"log of job {job}: the log is gone")

    async def test_a_job_that_never_ran_has_no_log_and_an_attempt_that_is_not_there_is_not_found(
        self, tmp_path: Path
    ) -> None:
        async with a_master(tmp_path) as master:
            job = await master.submit()
            assert await self.collect(self.read(master, job)) == b""
            assert await refused(self.collect(self.read(master, job, attempt=2**32 - 1))) == (
                UNKNOWN,
                f"job {job} has no attempt {2**32 - 1}",
            )
            assert (await refused(self.collect(self.read(master, "99"))))[0] is UNKNOWN
