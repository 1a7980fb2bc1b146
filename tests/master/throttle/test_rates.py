"""Nobody gets more than their share of the master's time: rates, lines, and how much may be open."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.spec.program import text_size
from ebbtide_core.model.types import JobId, Task
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.throttle.concurrency import FullError, JobTexts, OpenCalls, UnfinishedJobs
from ebbtide_master.throttle.fair_queue import FairQueue, use_queue
from ebbtide_master.throttle.rates import STAFF, Bucket, RateLimit, TooFastError, UserLimits
from ebbtide_master.throttle.throttle import Throttle
from hypothesis import given
from hypothesis import strategies as st

ANN, EVE, ROOT = Caller("ann", Role.USER), Caller("eve", Role.USER), Caller("root", Role.ADMIN)
RATES = UserLimits(calls=RateLimit(10.0, 5.0), jobs=RateLimit(100.0, 50.0), reads=RateLimit(20.0, 10.0))


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands()


def test_a_burst_is_served_and_what_follows_at_the_rate(clock: Hands) -> None:
    throttle = Throttle(RATES, now=clock)
    for _ in range(5):
        throttle.change(ANN)
    with pytest.raises(TooFastError, match=r"ann .* try again in 0\.1 s"):
        throttle.change(ANN)
    clock.now += 0.1
    throttle.change(ANN)


def test_one_users_flood_costs_another_nothing(clock: Hands) -> None:
    throttle = Throttle(RATES, now=clock)
    for _ in range(100):
        with suppress(TooFastError):
            throttle.change(ANN)
    for _ in range(5):
        throttle.change(EVE)


def test_an_array_costs_what_its_tasks_cost(clock: Hands) -> None:
    throttle = Throttle(RATES, now=clock)
    throttle.change(ANN, jobs=45)
    with pytest.raises(TooFastError, match="too many jobs") as refused:
        throttle.change(ANN, jobs=25)
    assert refused.value.wait_s == pytest.approx(0.2)


def test_what_is_larger_than_a_burst_is_served_once_and_paid_for_afterwards(clock: Hands) -> None:
    throttle = Throttle(RATES, now=clock)
    throttle.change(ANN, jobs=500)
    clock.now += 4.9
    with pytest.raises(TooFastError) as refused:
        throttle.change(ANN, jobs=50)
    assert refused.value.wait_s == pytest.approx(0.1)


def test_what_was_refused_costs_nothing(clock: Hands) -> None:
    throttle = Throttle(RATES, now=clock)
    for _ in range(10):
        throttle.read(ANN)
    for _ in range(100):
        with pytest.raises(TooFastError):
            throttle.read(ANN)
    clock.now += 0.05
    throttle.read(ANN)


def test_operators_may_do_more(clock: Hands) -> None:
    throttle = Throttle(RATES, now=clock)
    for _ in range(5 * STAFF):
        throttle.change(ROOT)
    with pytest.raises(TooFastError):
        throttle.change(ROOT)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 80)), max_size=60))
def test_a_bucket_never_gives_more_than_its_burst_and_its_rate(steps: list[tuple[float, int]]) -> None:
    rate = RateLimit(10.0, 50.0)
    bucket, now, given_out, largest = Bucket(rate, 0.0), 0.0, 0, 0
    for pause, cost in steps:
        now += pause
        if bucket.take(cost, now) == 0.0:
            given_out, largest = given_out + cost, max(largest, cost)
    assert given_out <= rate.burst + rate.per_s * now + max(0.0, largest - rate.burst) + 1e-6


@given(st.floats(0.0, 100.0), st.integers(1, 200))
def test_after_the_time_that_was_named_it_is_served(pause: float, cost: int) -> None:
    bucket = Bucket(RateLimit(10.0, 50.0), 0.0)
    bucket.take(50, 0.0)
    wait_s = bucket.take(cost, pause)
    assert wait_s == 0.0 or bucket.take(cost, pause + wait_s + 1e-6) == 0.0


def test_what_is_promised_to_one_user_fits_within_the_rates() -> None:
    """500 durable jobs a second as arrays, 100 one by one; the largest array at once."""
    rates = UserLimits()
    assert rates.jobs.per_s >= 500
    assert rates.calls.per_s >= 100
    assert rates.jobs.burst >= limits.MAX_ARRAY_TASKS


# --- what is open ---


def test_what_one_user_has_open_leaves_room_for_others() -> None:
    crowd = OpenCalls("streams", each=2, in_all=3)
    with crowd.one_more("ann"), crowd.one_more("ann"), crowd.one_more("eve"):
        with pytest.raises(FullError, match="ann has 2 streams open already, which is the limit"):
            crowd.one_more("ann").__enter__()
        with pytest.raises(FullError, match="the master has 3 streams open"):
            crowd.one_more("eve").__enter__()
    with crowd.one_more("ann"):
        pass


# --- lines ---


def test_lines_take_turns_whatever_waits_in_each() -> None:
    async def scenario() -> list[str]:
        turns: FairQueue[str] = FairQueue(100)

        async def bring(line: str, count: int) -> None:
            use_queue(line)
            for number in range(count):
                await turns.put(f"{line}{number}")

        await asyncio.create_task(bring("a", 50))
        await asyncio.create_task(bring("b", 2))
        await asyncio.create_task(bring("c", 1))
        return list(_all(turns))

    taken = asyncio.run(scenario())
    assert taken[:6] == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert taken[6:] == [f"a{number}" for number in range(3, 50)]


def test_a_full_line_makes_only_those_wait_who_stand_in_it() -> None:
    async def scenario() -> None:
        turns: FairQueue[str] = FairQueue(2)

        async def bring(line: str, work: str) -> None:
            use_queue(line)
            await turns.put(work)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bring("a", f"a{number}")) for number in range(3)]
            await asyncio.sleep(0)
            await bring("b", "b0")
            assert not tasks[2].done()
            assert turns.take() == "a0"
            await tasks[2]
        assert list(_all(turns)) == ["b0", "a1", "a2"]

    asyncio.run(scenario())


def test_nothing_is_left_of_a_line_whose_people_are_gone() -> None:
    async def scenario() -> None:
        turns: FairQueue[str] = FairQueue(1)
        use_queue("a")
        await turns.put("a0")
        waits = asyncio.create_task(turns.put("a1"))
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert list(_all(turns)) == ["a0"]
        assert not turns._queues

    asyncio.run(scenario())


def _all(turns: FairQueue[str]) -> Iterator[str]:
    while turns:
        yield turns.take()


# --- the queue ---


def cluster(settings: Settings | None = None) -> Cluster:
    return Cluster(create_policy("fitgpp", {}), settings=settings or Settings())


def test_one_users_jobs_do_not_fill_the_queue(clock: Hands) -> None:
    queued, state = UnfinishedJobs(3, clock), cluster()
    for number in range(3):
        queued.add(state, "ann", 1)
        spec = JobSpec(command=("x",), workdir="/")
        state.handle(e.JobSubmitted(JobId(str(number + 1)), spec, "ann"), 0.0)
    with pytest.raises(FullError, match="ann has 3 unfinished jobs: one more is over the limit of 3"):
        queued.add(state, "ann", 1)
    queued.add(state, "eve", 3)
    clock.now += 2.0
    with pytest.raises(FullError, match="eve has 0 unfinished jobs: 4 more are over the limit of 3"):
        queued.add(state, "eve", 4)


def test_jobs_that_ended_make_room(clock: Hands) -> None:
    queued, state = UnfinishedJobs(2, clock), cluster()
    queued.add(state, "ann", 2)
    clock.now += 5.0
    queued.add(state, "ann", 2)  # none of them came to anything


def test_an_administrators_word_on_somebody_counts_instead(clock: Hands) -> None:
    state = cluster(Settings(quotas=Quotas(users={"ann": Quota(queued=50)})))
    UnfinishedJobs(1, clock).add(state, "ann", 40)


def test_one_users_commands_and_scripts_are_bounded_and_what_is_removed_makes_room(clock: Hands) -> None:
    large = JobSpec(command=("x", "y" * 100_000), workdir="/")
    texts, state = JobTexts(3 * text_size(large), lambda job: 0, clock), cluster()
    for number in range(3):
        texts.add(state, "ann", text_size(large))
        state.handle(e.JobSubmitted(JobId(str(number)), large, "ann", hold=True), 0.0)
    with pytest.raises(FullError, match="of the jobs of ann would come to more than 300"):
        texts.add(state, "ann", text_size(large))
    texts.add(state, "eve", text_size(large))
    state.handle(e.CancelRequested(JobId("0")), 1.0)
    clock.now += 2.0
    with pytest.raises(FullError):  # it is over, and the master still has it in memory
        texts.add(state, "ann", text_size(large))
    state.handle(e.JobRemoved(JobId("0"), "ann"), 2.0)
    clock.now += 2.0
    texts.add(state, "ann", text_size(large))


def test_environments_count_once_for_an_array_and_as_long_as_a_job_that_is_over_keeps_its_own(clock: Hands) -> None:
    small, env_bytes = JobSpec(command=("x",), workdir="/", env={"EBB_PARAM_LR": "0.1"}), 100_000
    each = text_size(small)
    assert each > text_size(replace(small, env={}))
    kept = {JobId("1"): env_bytes, JobId("2"): env_bytes}
    texts, state = JobTexts(2 * env_bytes + 4 * each, lambda job: kept.get(job, 0), clock), cluster()
    texts.add(state, "ann", each + env_bytes)
    state.handle(e.JobSubmitted(JobId("1"), small, "ann", hold=True), 0.0)
    texts.add(state, "ann", 3 * each + env_bytes)
    for index in range(3):
        task = Task(JobId("2"), index, 3)
        state.handle(e.JobSubmitted(JobId(f"2.{index}"), small, "ann", hold=True, task=task), 0.0)
    state.handle(e.CancelRequested(JobId("1")), 1.0)
    clock.now += 2.0
    with pytest.raises(FullError, match="scripts and environments of the jobs of ann would come to more than 200"):
        texts.add(state, "ann", 1)
    texts.add(state, "eve", each + env_bytes)
    state.handle(e.JobRemoved(JobId("1"), "ann"), 2.0)
    clock.now += 2.0
    texts.add(state, "ann", each + env_bytes)
