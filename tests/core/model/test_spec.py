"""A job's request is one flat record, put together of parts."""

import copy
import pickle
from collections import Counter
from dataclasses import fields, replace

import pytest
from ebbtide_core.model.frozen import part
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.spec.program import ProgramSpec

SPEC = JobSpec(command=("train",), workdir="/", grace_s=3.0, nodes=2, output="log")


def test_each_field_stands_in_one_part() -> None:
    parts = Counter(name for kind in JobSpec.__bases__ for name in kind.__annotations__)
    assert set(parts) == {field.name for field in fields(JobSpec)}
    assert set(parts.values()) == {1}


def test_the_whole_has_slots_alone() -> None:
    assert not hasattr(SPEC, "__dict__")
    with pytest.raises(AttributeError):
        SPEC.no_field = 1  # type: ignore[attr-defined]


def test_a_copy_is_equal_and_keeps_the_fields_of_all_parts() -> None:
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert copy.deepcopy(SPEC) is SPEC
    other = replace(SPEC, retries=1)
    assert other != SPEC
    assert (other.command, other.grace_s, other.nodes, other.output) == (("train",), 3.0, 2, "log")


def test_a_part_with_slots_of_its_own_is_refused() -> None:
    with pytest.raises(AssertionError, match="Wide needs __slots__"):

        @part
        class Wide(ProgramSpec):
            more: int = 0
