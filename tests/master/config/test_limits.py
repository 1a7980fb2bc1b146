"""``[limits]``: what it may say, and what holds where it says nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from ebbtide_core.model import limits
from ebbtide_master.config.file import read_config
from ebbtide_master.config.limits import UserBounds
from ebbtide_master.config.table import ConfigError
from ebbtide_master.throttle.rates import RateLimit, UserLimits


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], UserBounds]:
    def read(text: str) -> UserBounds:
        path = tmp_path / "ebbtide.toml"
        path.write_text(text)
        return read_config(path).bounds

    return read


def test_all_limits_hold_where_nothing_is_said(read) -> None:
    assert read("") == UserBounds(UserLimits(), limits.MAX_UNFINISHED_JOBS_PER_USER, limits.LOG_BYTES)


def test_what_is_said_holds_and_the_rest_stays(read) -> None:
    found = read('[limits]\ncalls_per_s = 20\njobs_per_s = 10000\nqueued = 500\nlog_bytes = "64MiB"\n')
    assert found.rates.calls == RateLimit(20.0, 100.0)
    assert found.rates.jobs == RateLimit(10_000.0, 50_000.0)
    assert found.rates.reads == UserLimits().reads
    assert (found.queued, found.log_bytes) == (500, 64 * 2**20)


def test_the_largest_array_is_accepted_at_the_lowest_rate(read) -> None:
    assert read("[limits]\njobs_per_s = 1\n").rates.jobs.burst == limits.MAX_ARRAY_TASKS


@pytest.mark.parametrize("text", ["2GB", "2 gb", "2000000000B"])
def test_a_size_is_read_as_on_the_command_line(read, text) -> None:
    assert read(f'[limits]\nlog_bytes = "{text}"\n').log_bytes == 2 * 10**9


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("calls_per_s = 0", "limits.calls_per_s: 0 is not between 0.1 and 1e+06"),
        ("reads_per_s = nan", "limits.reads_per_s: nan is not between 0.1 and 1e+06"),
        ("queued = 0", "limits.queued: 0 is not between 1 and 200000"),
        ('log_bytes = "1 G"', "limits.log_bytes: '1 G' is not a size with a unit"),
        ('log_bytes = "1KiB"', "limits.log_bytes: 1024 bytes are not between 1MiB and 1024TiB"),
        ("log_bytes = 5", "limits.log_bytes: 5 is not a text"),
        ("speed = 1", "limits.speed: is not known here"),
    ],
)
def test_a_mistake_is_named(read, line, words) -> None:
    with pytest.raises(ConfigError, match=r"ebbtide\.toml: ") as wrong:
        read(f"[limits]\n{line}\n")
    assert words in str(wrong.value)
