"""Modules that load when they are first used."""

import sys
import threading
import time

import pytest
from ebbtide_protos.deferring import defer

SLOW = """
import time
loads.append(1)
time.sleep(0.1)
import {name} as itself  # as modules do that import each other
value = 7
def double(number):
    return 2 * number
"""


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Make a module that counts in ``loads`` how often it was loaded; return its name."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text.format(name=name))
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def loads(monkeypatch) -> list[int]:
    loaded: list[int] = []
    monkeypatch.setattr("builtins.loads", loaded, raising=False)
    return loaded


def test_an_import_loads_nothing_and_the_first_use_does(named, loads):
    defer(named("deferred_one", SLOW))
    import deferred_one

    assert loads == []
    assert deferred_one.value == 7
    assert deferred_one.itself is deferred_one
    assert deferred_one.double(4) == 8
    assert loads == [1]
    with pytest.raises(AttributeError, match="module 'deferred_one' has no attribute 'nothing'"):
        deferred_one.nothing  # noqa: B018


def test_a_function_may_be_taken_out_of_it_and_loads_it_when_it_is_called(named, loads):
    defer(named("deferred_two", SLOW), "double")
    from deferred_two import double

    assert loads == []
    assert double(4) == 8
    assert double(number=5) == 10
    assert loads == [1]


def test_what_serves_in_its_place_serves_until_it_loads(named, loads):
    defer(named("deferred_three", SLOW), value=1)
    import deferred_three

    assert deferred_three.value == 1
    assert loads == []
    assert deferred_three.double(1) == 2
    assert deferred_three.value == 7


def test_several_threads_load_it_once_and_none_sees_half_of_it(named, loads):
    defer(named("deferred_four", SLOW))
    import deferred_four

    found = []

    def use() -> None:
        found.append(deferred_four.double(deferred_four.value))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert found == [14] * 8
    assert loads == [1]


def test_a_module_that_fails_to_load_fails_for_each_who_uses_it(named, loads):
    defer(named("deferred_five", "loads.append(1)\nraise ZeroDivisionError\n"))
    import deferred_five

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            deferred_five.value  # noqa: B018
    assert loads == [1, 1]


def test_a_module_that_is_loaded_or_missing_is_left_alone(named, loads):
    before = sys.modules["json"]
    defer("json")
    assert sys.modules["json"] is before
    defer("deferred_missing")
    assert "deferred_missing" not in sys.modules


def test_a_module_of_a_package_is_found_in_its_package(tmp_path, monkeypatch, loads):
    folder = tmp_path / "deferred_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text("loads.append(1)\nvalue = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        defer("deferred_package.inner")
        import deferred_package.inner  # as `mimetypes` does with `urllib.parse`

        assert loads == []
        assert deferred_package.inner.value == 7
        assert loads == [1]
    finally:
        for name in ("deferred_package.inner", "deferred_package"):
            sys.modules.pop(name, None)
