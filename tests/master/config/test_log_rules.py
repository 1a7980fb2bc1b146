"""The section `[log_rules]` of the configuration file."""

import pytest
from ebbtide_core.model.log_rules import DEFAULT_RULES, LogAction, LogRule
from ebbtide_master.config.table import ConfigError


@pytest.fixture
def read(read_file):
    return lambda text: read_file(text).log_rules


def test_without_the_section_the_usual_rules_hold(read):
    assert read("") == DEFAULT_RULES


def test_an_administrators_rules_come_before_the_usual_ones(read):
    rules = read("[log_rules]\nexclude-node = ['Stale file handle']\nnotify = ['NCCL WARN']")
    own = (LogRule("NCCL WARN", LogAction.NOTIFY), LogRule("Stale file handle", LogAction.EXCLUDE_NODE))
    assert rules == (*own, *DEFAULT_RULES)


def test_the_usual_rules_can_be_left_out(read):
    assert read("[log_rules]\ndefaults = false") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[log_rules]\nstop = ['x']", "log_rules.stop: is not known here: there are defaults, ignore, notify,"),
        ("[log_rules]\nnotify = 'x'", "log_rules.notify: 'x' is not a list"),
        ("[log_rules]\nnotify = [1]", "log_rules.notify: 1 is not a text"),
        ("[log_rules]\nnotify = ['(']", "log_rules.notify: '(' is not a regular expression"),
    ],
)
def test_a_rule_that_is_none_is_named(read, text, message):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).split("ebbtide.toml: ")[1].startswith(message)
