"""Records as JSON."""

from dataclasses import dataclass, field

from ebbtide_agent.records import as_json


@dataclass
class Inner:
    number: int
    name: str = ""


@dataclass
class Outer:
    inner: Inner | None = None
    several: tuple[Inner, ...] = ()
    named: dict[str, float] = field(default_factory=dict)
    flag: bool = False
    is_on: bool = True
    step: int | None = None
    lines: list[str] = field(default_factory=list)


def test_records_become_dictionaries_and_tuples_lists() -> None:
    record = Outer(Inner(3, "a"), (Inner(1), Inner(2)), {"loss": 0.5}, step=7, lines=["x"])
    assert as_json(record) == {
        "inner": {"number": 3, "name": "a"},
        "several": [{"number": 1, "name": ""}, {"number": 2, "name": ""}],
        "named": {"loss": 0.5},
        "flag": False,
        "is_on": True,
        "step": 7,
        "lines": ["x"],
    }


def test_a_sparse_record_leaves_out_what_is_empty_by_default() -> None:
    assert as_json(Outer(), sparse=True) == {"is_on": True}
    assert as_json(Outer(inner=Inner(0)), sparse=True) == {"inner": {"number": 0}, "is_on": True}


def test_a_sparse_record_keeps_a_zero_that_is_not_the_default() -> None:
    assert as_json(Outer(step=0, is_on=False), sparse=True) == {"step": 0, "is_on": False}
