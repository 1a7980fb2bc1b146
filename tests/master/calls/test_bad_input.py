"""Whatever a client or an agent sends: a clean status that names what is wrong, and a master that goes on."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from ebbtide_core.model import limits
from ebbtide_core.model.spec.leaving import STOP_SIGNALS
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.drawing import share_of
from tests.master.world import DEADLINE_S, FREED, RUNNING, Agent, Master, a_master, make_hello, make_spec, make_status

INVALID = grpc.StatusCode.INVALID_ARGUMENT
CHECKPOINT, SWAP = job_pb2.SUSPEND_MODE_CHECKPOINT, job_pb2.SUSPEND_MODE_SWAP
quick = settings(max_examples=share_of(60), deadline=None, suppress_health_check=list(HealthCheck))

numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([math.nan, math.inf, -math.inf, -1.0, -0.0, 0.0, 1e-308, 1e308, 86400.0, 86400.1, 65536.0]),
)
sizes = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**53, 2**53 + 1, 2**63, 2**64 - 1]))
counts = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 1000, 1001, 2**31, 2**32 - 1]))
texts = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["", "\0", "a\0b", "\x1b[2J", "/", "/\u202e", "é" * 128, "x" * 129, "x" * 5000]),
)


class Bench:
    """A master that runs while a test asks it something, for properties with many examples."""

    def __init__(self, runner: asyncio.Runner, master: Master) -> None:
        self.run: Callable[[Any], Any] = runner.run
        self.master = master

    def submit(self, request: client_pb2.SubmitRequest) -> str:
        """The refusal's words, or "" if the job was accepted and is shown, and then cancelled, as any other."""

        async def submit() -> str:
            try:
                reply = await self.master.ask.Submit(request, timeout=DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not INVALID:
                    raise
                return error.details() or ""
            await self.master.show(reply.job_id)
            await self.master.ask.Cancel(client_pb2.CancelRequest(job_id=reply.job_id), timeout=DEADLINE_S)
            return ""

        words: str = self.run(submit())
        return words


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with asyncio.Runner() as runner, ExitStack() as stack:
        serving = a_master(tmp_path_factory.mktemp("home"))
        master = runner.run(serving.__aenter__())
        stack.callback(lambda: runner.run(serving.__aexit__(None, None, None)))
        yield Bench(runner, master)


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that comes in from outside is worth an error of the master's."""
    yield
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


class TestSubmit:
    @pytest.mark.parametrize(
        ("field", "option", "values", "low", "high"),
        [
            ("cpus", "--cpus", numbers, 0, limits.MAX_CPUS),
            ("grace_s", "--grace", numbers, 0, limits.MAX_GRACE_S),
            ("time_limit_s", "--time", numbers, 1, limits.MAX_TIME_LIMIT_S),
            ("gpu_mem_bytes", "--gpu-mem", sizes, 0, limits.MAX_MEM_BYTES),
            ("mem_bytes", "--mem", sizes, 0, limits.MAX_MEM_BYTES),
            ("retries", "--retries", counts, 0, limits.MAX_RETRIES),
            ("weight", "--weight", numbers, limits.MIN_WEIGHT, limits.MAX_WEIGHT),
            ("priority", "--priority", st.integers(-(2**31), 2**31 - 1), 1, 99),
        ],
    )
    def test_a_number_is_accepted_within_its_limits_and_refused_by_its_name_outside(
        self, bench: Bench, field: str, option: str, values: st.SearchStrategy[Any], low: float, high: float
    ) -> None:
        @quick
        @given(values)
        def check(value: float) -> None:
            words = bench.submit(client_pb2.SubmitRequest(spec=make_spec(0, **{field: value})))
            valid = low <= value <= high or (field == "priority" and value == 0)
            assert words.split(":")[0] == ("" if valid else option)

        check()

    @quick
    @given(counts, counts, counts, counts)
    def test_a_share_is_a_share_of_gpus_or_refused(self, bench: Bench, a: int, b: int, c: int, d: int) -> None:
        low, high = job_pb2.Share(numerator=a, denominator=b), job_pb2.Share(numerator=c, denominator=d)
        for spec in (make_spec(gpus_min=low), make_spec(gpus_min=low, gpus_max=high)):
            assert bench.submit(client_pb2.SubmitRequest(spec=spec)).split(":")[0] in ("", "--gpus")

    @pytest.mark.parametrize(
        ("field", "options"),
        [("name", {"--name"}), ("workdir", {"--workdir"}), ("signal", {"--signal"}), ("group", {"--group"})],
    )
    def test_a_text_that_no_process_can_carry_is_refused_by_its_name(
        self, bench: Bench, field: str, options: set[str]
    ) -> None:
        @quick
        @given(texts)
        def check(text: str) -> None:
            words = bench.submit(client_pb2.SubmitRequest(spec=make_spec(**{field: text})))
            assert words.split(":")[0] in {"", *options}
            if "\0" in text:
                assert words

        check()

    @quick
    @given(st.lists(texts, max_size=4), st.dictionaries(texts, texts, max_size=3))
    def test_a_command_or_environment_that_no_process_can_carry_is_refused(
        self, bench: Bench, command: list[str], env: dict[str, str]
    ) -> None:
        words = bench.submit(client_pb2.SubmitRequest(spec=make_spec(command=command, env=env)))
        assert words.split(" ")[0].rstrip(":") in ("", "command", "argument", "--env")
        if not command or not command[0] or any("\0" in text for text in (*command, *env, *env.values())):
            assert words

    @quick
    @given(texts, texts)
    def test_who_asks_and_under_which_name_is_bounded(self, bench: Bench, user: str, operation: str) -> None:
        operation = operation and f"{operation}{user}"
        request = client_pb2.SubmitRequest(spec=make_spec(), user=user, operation_id=operation)
        words = bench.submit(request)
        if len(operation) > limits.MAX_OPERATION_ID_LENGTH:
            assert words.startswith("operation_id:")
        elif len(user) > 64 or not user.isprintable():
            assert words.startswith("user:")

    @pytest.mark.parametrize("field", ["job_class", "suspend", "launch", "exit_zero", "signal_target"])
    @pytest.mark.parametrize("value", [-1, 77, 2**31 - 1])
    def test_a_choice_that_this_version_does_not_know_is_refused(self, bench: Bench, field: str, value: int) -> None:
        option = {"job_class": "--class", "exit_zero": "--exit0", "signal_target": "--signal-target"}.get(
            field, f"--{field}"
        )
        spec = make_spec(**{field: value})
        assert bench.submit(client_pb2.SubmitRequest(spec=spec)).startswith(f"{option}: {value} is not known")

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"command": ["x" * (limits.MAX_ARGUMENT_BYTES + 1)]}, "argument 0: 131072 bytes are over the limit"),
            ({"command": ["x" * 100_000] * 11}, "command: 1100011 bytes are over the limit"),
            ({"env": {f"K{i}": "v" * 1000 for i in range(300)}}, "--env: "),
            ({"env": {"A=B": ""}}, "--env: 'A=B' is not a variable name"),
            ({"workdir": "tmp"}, "--workdir: 'tmp' is not an absolute path"),
            ({"launch": job_pb2.LAUNCH_MODE_DDP, "gpus_min": job_pb2.Share(denominator=1)}, "--launch ddp"),
            ({"signal": "S" * 100_000}, "--signal: "),
        ],
    )
    def test_the_words_name_field_and_limit_in_one_short_line(
        self, bench: Bench, fields: dict[str, Any], words: str
    ) -> None:
        said = bench.submit(client_pb2.SubmitRequest(spec=make_spec(**fields)))
        assert said.startswith(words)
        assert len(said) <= 1000
        assert "\n" not in said

    def test_a_message_over_the_limit_is_refused_before_it_is_read(self, bench: Bench) -> None:
        async def submit() -> grpc.StatusCode:
            spec = make_spec(command=["x" * 5 * limits.MIB])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await bench.master.ask.Submit(client_pb2.SubmitRequest(spec=spec), timeout=DEADLINE_S)
            return refused.value.code()

        assert bench.run(submit()) is grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_the_limits_themselves_are_accepted(self, bench: Bench) -> None:
        spec = make_spec(
            command=["x" * limits.MAX_ARGUMENT_BYTES], name="n" * limits.MAX_NAME_LENGTH, signal=STOP_SIGNALS[-1],
            grace_s=limits.MAX_GRACE_S, retries=limits.MAX_RETRIES, priority=limits.MAX_PRIORITY,
            weight=limits.MAX_WEIGHT, group="g" * limits.MAX_NAME_LENGTH,
        )  # fmt: skip
        assert bench.submit(client_pb2.SubmitRequest(spec=spec, user="u" * 64, operation_id="o" * 64)) == ""


METHODS = [
    method
    for file in (client_pb2.DESCRIPTOR, agent_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def test_the_methods_are_found() -> None:
    names = {path_of(method) for method in METHODS}
    assert {"/ebbtide.v1.ClientService/Submit", "/ebbtide.v1.AgentService/Attach"} <= names
    assert len(names) >= 17


ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,  # a stream that went on, and that the test ended
}


class TestAnyBytes:
    async def send(
        self, master: Master, method: MethodDescriptor, data: bytes, seconds: float = 0.05
    ) -> grpc.StatusCode:
        """Send raw bytes to any method; how it ended, by itself or because the test had seen enough."""
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        call = getattr(master.channel, kind)(path_of(method))([data] if method.client_streaming else data)
        try:
            if not method.server_streaming:
                await asyncio.wait_for(call, DEADLINE_S)
            else:
                async with asyncio.timeout(seconds):  # some of them go on for as long as they are wanted
                    async for _ in call:
                        pass
        except (grpc.aio.AioRpcError, TimeoutError):
            call.cancel()
        code: grpc.StatusCode = await call.code()
        return code

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
    def test_any_bytes_end_in_a_clean_status(self, bench: Bench, method: MethodDescriptor) -> None:
        @settings(quick, max_examples=share_of(25))
        @given(st.binary(max_size=300))
        def check(data: bytes) -> None:
            assert bench.run(self.send(bench.master, method, data)) in ALLOWED

        check()
        assert bench.submit(client_pb2.SubmitRequest(spec=make_spec())) == ""

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
    def test_what_is_no_message_is_called_that(self, bench: Bench, method: MethodDescriptor) -> None:
        assert bench.run(self.send(bench.master, method, b"\xff\xff\xff", DEADLINE_S)) is INVALID

    def test_a_method_that_does_not_exist_is_unimplemented(self, bench: Bench) -> None:
        async def call() -> grpc.StatusCode:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await bench.master.channel.unary_unary("/ebbtide.v1.ClientService/Brew")(b"")
            return error.value.code()

        assert bench.run(call()) is grpc.StatusCode.UNIMPLEMENTED


statuses = st.builds(
    agent_pb2.AttemptStatus,
    job_id=st.sampled_from(["1", "2", "3", "4", "5", "", "x\0"]),
    attempt=st.sampled_from([0, 1, 1, 1, 2, 3, 2**32 - 1]),
    phase=st.integers(0, 7),
    pid=counts,
    started_at=numbers,
    progress=st.none() | st.builds(job_pb2.Progress, step=st.integers(-(2**63), 2**63 - 1), loss=numbers),
    checkpoint=st.none() | st.builds(job_pb2.Checkpoint, step=st.integers(-5, 5), bytes=sizes, path=texts),
    exit=st.none()
    | st.builds(
        agent_pb2.ExitRecord,
        exit_code=st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 75, 85, 143]),
        signal=counts | st.sampled_from([0, 9, 15, 64, 65]),
        ended_at=numbers,
        checkpoint_s=numbers,
        stop_requested=st.booleans(),
        delivered=st.booleans(),
        caught=st.booleans(),
        acknowledged=st.booleans(),
        killed=st.booleans(),
        checkpointed=st.integers(-1, 5),
        swap_failure=st.just("") | texts,
    ),
    swaps=st.sampled_from([0, 1, 2, 2**32 - 1]),
    swapped_bytes=sizes,
    refusal=texts,
    refusal_cause=st.integers(-1, 5),
    dirty_gpus=st.lists(st.sampled_from(["n1-0", "n1-1", "none", ""]), max_size=2),
    resumed_step=st.none() | st.integers(-(2**63), 2**63 - 1),
    lost=st.booleans(),
)
beats = st.builds(
    agent_pb2.Heartbeat,
    gpus=st.lists(
        st.builds(
            agent_pb2.GpuReading,
            uuid=st.sampled_from(["n1-0", "n1-1", "none", ""]),
            utilisation=numbers,
            mem_used_bytes=sizes,
            healthy=st.booleans(),
            unhealthy_reason=texts,
        ),
        max_size=4,
    ),
)
messages = st.one_of(
    st.builds(agent_pb2.AgentMessage, status=statuses),
    st.builds(agent_pb2.AgentMessage, heartbeat=beats),
    st.builds(agent_pb2.AgentMessage, log=st.builds(agent_pb2.LogData, request_id=sizes, data=st.binary(max_size=9))),
    st.builds(agent_pb2.AgentMessage, hello=st.just(make_hello("n1"))),
    st.just(agent_pb2.AgentMessage()),
)


FAILS_IN_HOST_MEMORY = [
    make_status("1", 1, RUNNING),
    make_status("1", 1, agent_pb2.ATTEMPT_PHASE_SWAPPED, swaps=1),
    make_status("1", 1, FREED, exit=agent_pb2.ExitRecord(exit_code=1, ended_at=1001.0)),
]


@settings(quick, max_examples=share_of(25))
@given(st.lists(messages, max_size=25), st.lists(statuses, max_size=4))
@example([agent_pb2.AgentMessage(status=status) for status in FAILS_IN_HOST_MEMORY], [])
def test_whatever_a_registered_agent_says_the_master_goes_on(
    tmp_path_factory: pytest.TempPathFactory, said: list[agent_pb2.AgentMessage], known: list[agent_pb2.AttemptStatus]
) -> None:
    home = tmp_path_factory.mktemp("home")

    async def scenario() -> None:
        async with a_master(home) as master:
            agent = await master.agent("n1", gpus=2, attempts=known)
            jobs = [await master.submit(retries=2, suspend=mode) for mode in (SWAP, CHECKPOINT, SWAP)]
            await master.ask.Suspend(client_pb2.JobRequest(job_id=jobs[0]))
            for message in said:
                await agent._call.write(message)
            await everything_answers(master, agent)
        async with a_master(home) as master:  # and what it said can be folded again
            await everything_answers(master, await master.agent("n1", gpus=2, attempts=known))

    asyncio.run(scenario())


async def everything_answers(master: Master, agent: Agent) -> None:
    """The stream ends as it should, which is after all that was said on it was heard, and everything can be asked."""
    await agent.hang_up()
    assert await agent.ends() is grpc.StatusCode.OK
    listed = await master.ask.ListJobs(client_pb2.ListJobsRequest(all=True), timeout=DEADLINE_S)
    for job in listed.jobs:
        await master.ask.ShowStory(client_pb2.JobRequest(job_id=job.job_id), timeout=DEADLINE_S)
    await master.ask.ListNodes(client_pb2.ListNodesRequest(), timeout=DEADLINE_S)
    assert len(listed.jobs) == 3
    assert not master.service.consumer.done()
