"""``[fencing]`` of the configuration file."""

from pathlib import Path

import pytest
from ebbtide_master.config.fencing import FencingSettings
from ebbtide_master.config.file import read_config
from ebbtide_master.config.table import ConfigError


def written(path: Path, text: str) -> Path:
    file = path / "ebbtide.toml"
    file.write_text(text)
    return file


def test_without_it_nobody_is_fenced(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "")).fencing.hook == ()


def test_the_hook_is_a_program_with_its_arguments(tmp_path: Path) -> None:
    text = '[fencing]\nhook = ["/opt/fence", "--off"]\nafter = "2m"\ntimeout = "90s"\n'
    expected = FencingSettings(hook=("/opt/fence", "--off"), after_s=120.0, timeout_s=90.0)
    assert read_config(written(tmp_path, text)).fencing == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('hook = ["fence"]', "fencing.hook: 'fence' is not an absolute path"),
        ("hook = [1]", "fencing.hook: is not a list of texts: the program and its arguments"),
        ('hook = "/opt/fence"', "fencing.hook: '/opt/fence' is not a list"),
        ('after = "5s"', "fencing.after: is not between 20 s and 86400 s"),
        ('timeout = "0s"', "fencing.timeout: is not between 0 and 86400 s"),
        ("every = 1", "fencing.every: is not known here: there are hook, after, timeout"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"ebbtide\.toml: ") as error:
        read_config(written(tmp_path, f"[fencing]\n{line}\n"))
    assert str(error.value).endswith(words)
