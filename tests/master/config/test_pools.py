"""The configuration file: what it means, and that each mistake is named."""

import pytest
from ebbtide_core.model.settings import Fitting, PoolSettings
from ebbtide_master.config.file import Config, read_config
from ebbtide_master.config.table import ConfigError
from ebbtide_master.main import MasterOptions, StartError, _settings


def test_an_empty_file_is_one_pool_with_the_default_policy(read_file):
    assert read_file("") == Config()


def test_each_pool_has_its_policy_and_fitting(read_file):
    settings = read_file(
        """
        gpu_pool = "a100"
        [pools.a100]
        policy = "priority"
        fitting = "worst"
        options = { min_run_s = 60, preemption = "off" }
        """
    ).settings
    options = {"min_run_s": "60", "preemption": "off"}
    assert settings.pools["a100"] == PoolSettings(policy="priority", options=options, fitting=Fitting.WORST)
    assert (settings.gpu_pool, settings.cpu_pool) == ("a100", "default")


def test_the_pool_default_is_there_whether_or_not_it_is_named(read_file):
    assert "default" in read_file("[pools.a100]").settings.pools
    assert not read_file("[pools.a100]").names_default_pool
    assert read_file("[pools.default]").names_default_pool


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool = 1", "pool: is not known here: there are pools, gpu_pool, cpu_pool"),
        ("gpu_pool = 'a100'", "gpu_pool: there is no pool 'a100': there are default"),
        ("[pools.a]\npolicy = 'best'", "pools.a.policy: --policy: 'best' is none of "),
        ("[pools.a]\npolicy = 3", "pools.a.policy: 3 is not a text"),
        ("[pools.a]\npolcy = 'fifo'", "pools.a.polcy: is not known here: there are policy, options, fitting"),
        ("[pools.a]\nfitting = 'bst'", "pools.a.fitting: 'bst' is neither best nor worst"),
        ("[pools.'a b']\npolicy = 'fifo'", "pools.a b: a name is up to 63 letters"),
        ("[pools]\na = 1", "pools.a: 1 is not a table"),
        ("[pools.a", "Expected"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(read_file, text, message):
    with pytest.raises(ConfigError) as caught:
        read_file(text)
    assert str(caught.value).split("ebbtide.toml: ")[1].startswith(message)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.toml: No such file"):
        read_config(tmp_path / "missing.toml")


def test_the_default_pool_is_scheduled_as_the_file_says_or_as_the_command_line_but_not_both(tmp_path):
    (tmp_path / "ebbtide.toml").write_text("[pools.a100]")
    config = tmp_path / "ebbtide.toml"
    pools = _settings(MasterOptions(tmp_path, policy="fifo"), read_config(config)).pools
    assert {name: pool.policy for name, pool in pools.items()} == {"default": "fifo", "a100": "fitgpp"}
    (tmp_path / "ebbtide.toml").write_text("[pools.default]\npolicy = 'priority'")
    assert _settings(MasterOptions(tmp_path), read_config(config)).pools["default"].policy == "priority"
    with pytest.raises(StartError) as caught:
        _settings(MasterOptions(tmp_path, policy_options={"s": "8"}), read_config(config))
    assert str(caught.value) == f"--policy-option: {tmp_path}/ebbtide.toml has [pools.default]: say it there"
