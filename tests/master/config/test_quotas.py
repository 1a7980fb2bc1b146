"""Quotas in the configuration file."""

import pytest
from ebbtide_core.model.quotas import Quota
from ebbtide_core.model.types import WHOLE
from ebbtide_master.config.table import ConfigError


def test_a_user_has_the_default_but_for_what_is_said_of_them(read_file):
    quotas = read_file("[quotas]\ndefault = {gpus = 4, queued = 1000}\n[quotas.users.anna]\ngpus = 8").settings.quotas
    assert quotas.of("anna") == Quota(8 * WHOLE, 1000)
    assert quotas.of("bob") == Quota(4 * WHOLE, 1000)


def test_without_the_section_nobody_has_a_quota(read_file):
    assert not read_file("").settings.quotas


def test_sessions_may_be_unused_for_as_long_as_it_says(read_file):
    assert read_file("").settings.idle_s == 8 * 3600
    assert read_file("[sessions]\nidle = '10m'").settings.idle_s == 600
    assert read_file("[sessions]\nidle = '0s'").settings.idle_s is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[quotas]\ndefaults = {}", "quotas.defaults: is not known here: there are default, users"),
        ("[quotas.users.anna]\ngpus = -2", "quotas.users.anna.gpus: -2 is less than 0"),
        ('[quotas.users.anna]\ngpus = "4"', "quotas.users.anna.gpus: '4' is not a whole number"),
    ],
)
def test_each_mistake_is_named(read_file, text, message):
    with pytest.raises(ConfigError, match=message):
        read_file(text)
