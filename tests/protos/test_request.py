"""A job's request from hop to hop: what is drawn follows from the fields of the records, so a new one is covered."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from ebbtide_agent.attempts.translation import intent_of
from ebbtide_agent.contract.intent import AllocatedGpu, Intent
from ebbtide_agent.contract.intent import LogPattern as IntentRule
from ebbtide_agent.network import Network
from ebbtide_core import events as e
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.model.log_rules import LogAction, LogRule
from ebbtide_core.model.spec import JobSpec, SpecError
from ebbtide_core.model.types import JobClass, JobId, JobKind, LaunchMode, SignalTarget, SuspendMode
from ebbtide_protos.mapping import Mapper, Wire, negated
from ebbtide_protos.spec import LOG_RULES, WIRES, parts_to_share, spec_from_message, spec_to_message
from ebbtide_protos.v1 import agent_pb2, job_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

NOT_SENT = {"work_s"}
"""Fields of a request that only the simulator knows."""
WORDS = st.text("aé \"'{}/=", min_size=1, max_size=6)
NUMBERS = st.integers(1, 2**31 - 1)
SECONDS = st.floats(1e-3, 1e9)


def values(kind: Any, default: Any = dataclasses.MISSING) -> st.SearchStrategy[Any]:
    """Any value of a field of that type, and its default; zero only where that is the default."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return values(kind.__supertype__, default)
    plain = {str: WORDS, int: NUMBERS, float: SECONDS, bool: st.booleans()}
    if kind in plain:
        drawn = plain[kind]
    elif origin in (types.UnionType, typing.Union):
        drawn = values(arguments[0])
    elif origin is tuple:
        drawn = st.lists(values(arguments[0]), max_size=2).map(tuple)
    elif origin is Mapping:
        drawn = st.dictionaries(WORDS, values(arguments[1]), max_size=2)
    elif issubclass(kind, Enum):
        drawn = st.sampled_from(list(kind))
    else:
        drawn = records(kind)
    return drawn if default is dataclasses.MISSING else drawn | st.just(default)


def records(kind: Any) -> st.SearchStrategy[Any]:
    """Any record of that type, by its fields."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name], default_of(field)) for field in fields(kind)})


def default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def other_than_default(kind: Any) -> Any:
    """A record of which no field has its default, nor is zero, nor empty."""
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: other(hints[field.name], default_of(field)) for field in fields(kind)})


def other(kind: Any, default: Any) -> Any:
    """A value of that type that is neither the default, nor zero, nor empty."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return other(kind.__supertype__, default)
    if kind in (str, int, float):
        return {str: "é", int: 7, float: 7.5}[kind]
    if kind is bool:
        return default is not True
    if origin in (types.UnionType, typing.Union):
        return other(arguments[0], None)
    if origin is tuple:
        return (other(arguments[0], None),)
    if origin is Mapping:
        return {"é": other(arguments[1], None)}
    if issubclass(kind, Enum):
        return next(member for member in kind if member is not default)
    return other_than_default(kind)


def sendable(spec: JobSpec) -> JobSpec:
    """A request as the wire can have it: it is spread if, and only if, it may have several nodes."""
    without = {name: next(one.default for one in fields(spec) if one.name == name) for name in NOT_SENT}
    return replace(spec, spread=spec.max_nodes > 1, **without)


FULL = sendable(other_than_default(JobSpec))
SPECS = records(JobSpec).map(sendable)


def test_the_request_that_stands_for_all_has_no_field_with_its_default() -> None:
    assert [field.name for field in fields(FULL) if getattr(FULL, field.name) == default_of(field)] == sorted(NOT_SENT)


@given(spec=SPECS)
@example(spec=FULL)
@settings(deadline=None)
def test_a_request_is_the_same_behind_the_wire(spec: JobSpec) -> None:
    message = spec_to_message(spec)
    assert spec_from_message(job_pb2.JobSpec.FromString(message.SerializeToString())) == spec


@given(spec=records(JobSpec))
@example(spec=other_than_default(JobSpec))
@settings(deadline=None)
def test_a_request_is_the_same_behind_the_journal(spec: JobSpec) -> None:
    event = e.JobSubmitted(JobId("1"), spec, "ann")
    assert decode_event("JobSubmitted", json.loads(json.dumps(encode(event)))) == event


def test_every_field_of_the_wire_s_request_is_one_of_the_record_s() -> None:
    sent = {field.name for field, _ in spec_to_message(FULL).ListFields()}
    assert sent == set(job_pb2.JobSpec.DESCRIPTOR.fields_by_name)


# --- launch → intent → JSON → intent ---

WHERE: dict[str, Any] = {
    "node_dir": Path("/n"),
    "checkpoint_root": Path("/c"),
    "cluster_id": "c1",
    "fake_gpu_dir": Path("/f"),
    "network": Network("eth0", 20000, 20001),
}
OF_NODE = {
    "node_dir": "/n",
    "cluster_id": "c1",
    "fake_gpu_dir": "/f",
    "network": Network("eth0", 20000, 20001),
}
LATER = {"account", "sharing", "sharing_env", "limited_by", "leased_at"}
"""Fields of an intent that the agent fills in after the order came."""


@dataclass(frozen=True)
class Order:
    """What a launch says beside the request, by the names of its message."""

    attempt: int
    needs_checkpoint: bool
    node_rank: int
    num_nodes: int
    world_size: int
    master_addr: str
    master_port: int
    first_rank: int
    log_bytes: int
    node_names: tuple[str, ...]


def launch(spec: JobSpec, order: Order) -> agent_pb2.Launch:
    gpu = job_pb2.GpuAllocation(uuid="GPU-1", share=parts_to_share(180_180), mem_bytes=7)
    own = {field.name: getattr(order, field.name) for field in fields(order)}
    return agent_pb2.Launch(job_id="17", spec=spec_to_message(spec), gpus=[gpu], **own)


def expected(spec: JobSpec, order: Order) -> dict[str, Any]:
    """The fields of the intent: those of the order and of the request by name, and what follows from them."""
    by_name = {field.name: getattr(order, field.name) for field in fields(order)}
    by_name |= {field.name: getattr(spec, field.name) for field in fields(spec)}
    shell = spec.kind is JobKind.SHELL
    follows = {
        "job_id": "17",
        "ranks_before": order.first_rank,
        "signal_target": spec.signal_target.value,
        "gpus": (AllocatedGpu("GPU-1", 1, 4, 7),),
        "ddp": spec.launch is LaunchMode.DDP,
        "meets": order.num_nodes > 1 or spec.spread,
        "swaps": spec.suspend is SuspendMode.SWAP,
        "warm": spec.warm and not shell,
        "session": shell,
        "job_checkpoint_dir": "/c/c1/17",
        "output": str(Path(spec.workdir, spec.output)) if spec.output else "",
        "log_rules": tuple(
            IntentRule(pattern, f"LOG_ACTION_{action.name}")
            for pattern, action in reversed({rule.pattern: rule.action for rule in reversed(spec.log_rules)}.items())
        ),
    }
    names = {field.name for field in fields(Intent)} - LATER - {"command", "log_rules"}
    return {name: value for name, value in (by_name | OF_NODE | follows).items() if name in names}


def plain(intent: Intent) -> dict[str, Any]:
    return {field.name: getattr(intent, field.name) for field in fields(intent)}


@given(spec=SPECS, order=records(Order))
@example(spec=FULL, order=other_than_default(Order))
@settings(deadline=None)
def test_an_intent_has_what_the_order_and_the_request_say(spec: JobSpec, order: Order) -> None:
    intent = intent_of(launch(spec, order), **WHERE)
    wanted = expected(spec, order)
    found = plain(intent)
    assert {name: found[name] for name in wanted} == wanted
    assert {rule.pattern for rule in intent.log_rules} == {rule.pattern for rule in spec.log_rules}
    if spec.kind in (JobKind.BATCH, JobKind.COMMAND):
        assert intent.command == spec.command
    assert wanted.keys() | LATER | {"command", "log_rules"} == found.keys()


@given(intent=records(Intent))
@example(intent=other_than_default(Intent))
@settings(deadline=None)
def test_an_intent_is_the_same_behind_its_file(intent: Intent) -> None:
    assert Intent.from_json(json.loads(json.dumps(intent.to_json()))) == intent


def test_an_order_without_a_field_gives_its_default() -> None:
    intent = intent_of(agent_pb2.Launch(job_id="17"), **WHERE)
    assert (intent.num_nodes, intent.signal_target.value, intent.sdk, intent.warm) == (1, "auto", True, True)
    assert (intent.idle_limit_s, intent.failover_after_s, intent.grace_s, intent.signal) == (None, None, 0.0, "")


def test_an_agent_takes_a_signal_target_that_it_does_not_know_for_none() -> None:
    order = agent_pb2.Launch(job_id="17", spec=job_pb2.JobSpec(signal_target=99))
    assert intent_of(order, **WHERE).signal_target.value == "auto"


# --- what is missing, unknown, or does not fit ---


def test_what_a_peer_does_not_say_has_the_defaults_of_the_request() -> None:
    assert spec_from_message(job_pb2.JobSpec(command=["x"], workdir="/")) == JobSpec(command=("x",), workdir="/")
    one_size = job_pb2.JobSpec(command=["x"], workdir="/", gpus_min=parts_to_share(180_180))
    assert spec_from_message(one_size).gpus_max == 180_180


def test_a_zero_is_told_from_what_is_left_out_where_the_wire_can() -> None:
    said = spec_from_message(job_pb2.JobSpec(grace_s=0.0, weight=0.0, time_limit_s=0.0, idle_limit_s=0.0))
    assert (said.grace_s, said.weight, said.time_limit_s, said.idle_limit_s) == (0.0, 0.0, 0.0, None)
    halving = spec_from_message(job_pb2.JobSpec(asha=job_pb2.Asha())).asha
    assert halving is not None
    assert (halving.eta, halving.metric) == (0, "")  # refused, not guessed


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (job_pb2.JobSpec(job_class=99), "--class: 99 is not known to this version"),
        (job_pb2.JobSpec(exit_zero=99), "--exit0: 99 is not known to this version"),
        (job_pb2.JobSpec(signal_target=99), "--signal-target: 99 is not known to this version"),
        (job_pb2.JobSpec(kind=99), "kind: 99 is not known to this version"),
        (job_pb2.JobSpec(log_rules=[job_pb2.LogRule(pattern="x")]), "--on-log: action 0 is not known to this version"),
        (job_pb2.JobSpec(after=[job_pb2.Dependency(kind=99)]), "--after: kind 99 is not known to this version"),
        (
            job_pb2.JobSpec(notify=[job_pb2.NoticeRule(moments=["bored"])]),
            "--notify: moments 'bored' is not known to this version",
        ),
        (job_pb2.JobSpec(gpus_min=job_pb2.Share(numerator=1)), "--gpus: is not a number of GPUs"),
    ],
)
def test_what_this_version_does_not_know_is_refused_by_the_name_of_its_option(said, error) -> None:
    with pytest.raises(SpecError) as refused:
        spec_from_message(said)
    assert str(refused.value) == error


@dataclass(frozen=True)
class Misfit:
    pattern: str = ""
    action: Any = None


@pytest.mark.parametrize(
    ("kind", "wire", "error"),
    [
        (
            LogAction | None,
            Wire(),
            "Misfit.action: ebbtide_core.model.log_rules.LogAction | None is no type for ebbtide.v1.LogRule.action",
        ),
        (int, Wire(), "Misfit.action: int is no type for ebbtide.v1.LogRule.action"),
        (tuple[LogAction, ...], Wire(), "Misfit.action: tuple is no type for ebbtide.v1.LogRule.action"),
        (JobClass, Wire(), "Misfit.action: there is no LOG_ACTION_TRIAL_AND_ERROR on the wire"),
        (str, Wire(name="deed"), "Misfit.action: ebbtide.v1.LogRule has no field deed"),
    ],
)
def test_a_field_that_does_not_fit_the_wire_is_named(kind, wire, error, monkeypatch) -> None:
    monkeypatch.setitem(Misfit.__annotations__, "action", kind)
    with pytest.raises(TypeError) as wrong:
        Mapper(Misfit, job_pb2.LogRule, {Misfit: {"action": wire}}).to_message(Misfit())
    assert str(wrong.value) == error


def test_a_flag_that_is_on_by_default_needs_a_name_that_says_no() -> None:
    @dataclass(frozen=True)
    class Flag:
        mixed_gpus: bool = True

    with pytest.raises(TypeError, match=r"Flag\.mixed_gpus: its default is true"):
        Mapper(Flag, job_pb2.Needs).to_message(Flag())
    mapper = Mapper(Flag, job_pb2.Needs, {Flag: {"mixed_gpus": negated("mixed_gpus")}})
    assert mapper.from_message(mapper.to_message(Flag(False))) == Flag(False)
    assert mapper.to_message(Flag()) == job_pb2.Needs()


def test_a_rule_of_the_administrator_is_mapped_like_one_of_a_job() -> None:
    rule = LogRule("NCCL", LogAction.EXCLUDE_NODE)
    assert LOG_RULES.from_message(LOG_RULES.to_message(rule)) == rule


def test_every_exception_of_the_table_is_about_a_field_that_there_is() -> None:
    for record, wires in WIRES.items():
        assert wires.keys() <= {field.name for field in fields(record)}


def test_the_agent_s_signal_targets_are_the_request_s() -> None:
    assert [target.value for target in SignalTarget] == [
        target.value for target in typing.get_type_hints(Intent)["signal_target"]
    ]
