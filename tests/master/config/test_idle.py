"""``[idle]`` of the configuration file."""

import pytest
from ebbtide_core.model.settings import IdleAction, IdleSettings
from ebbtide_master.config.table import ConfigError


@pytest.fixture
def read(read_file):
    return lambda text: read_file(text).settings.idle


def test_without_it_jobs_are_told_of_after_half_an_hour(read):
    assert read("") == IdleSettings(after_s=1800, action=IdleAction.NOTIFY, warning_s=600)


def test_times_are_written_as_on_the_command_line(read):
    found = read('[idle]\nafter = "1h30m"\naction = "suspend"\nwarning = "90s"')
    assert found == IdleSettings(after_s=5400, action=IdleAction.SUSPEND, warning_s=90)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("after = 30", "idle.after: 30 is not a text"),
        ('after = "30"', "idle.after: '30' is not a duration with units: write 90s"),
        ('after = "0s"', "idle.after: is shorter than 1 s"),
        ('action = "kill"', "idle.action: 'kill' is neither notify nor suspend"),
        ('minutes = "3"', "idle.minutes: is not known here: there are after, warning, action"),
    ],
)
def test_each_mistake_is_named(read, line, complaint):
    with pytest.raises(ConfigError) as error:
        read(f"[idle]\n{line}")
    assert complaint in str(error.value)
