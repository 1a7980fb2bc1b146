"""``[journal]`` in the master's configuration file."""

from pathlib import Path

import pytest
from ebbtide_master.config.file import read_config
from ebbtide_master.config.journal import JournalSettings
from ebbtide_master.config.table import ConfigError


def read(tmp_path: Path, text: str) -> JournalSettings:
    path = tmp_path / "ebbtide.toml"
    path.write_text(text)
    return read_config(path).journal


def test_a_backup_is_taken_every_day_and_seven_are_kept_unless_it_says_else(tmp_path: Path) -> None:
    assert read(tmp_path, "") == JournalSettings(86_400.0, 7)
    assert read(tmp_path, '[journal]\nbackup_every = "0s"') == JournalSettings(0.0, 7)
    assert read(tmp_path, '[journal]\nbackup_every = "6h"\nbackup_keep = 3') == JournalSettings(21_600.0, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('backup_every = "daily"', "journal.backup_every: 'daily' is not a duration"),
        ('backup_every = "5s"', "journal.backup_every: is shorter than 60 s"),
        ("backup_keep = 0", "journal.backup_keep: 0 is not at least 1"),
        ("backups = 3", "journal.backups: is not known here"),
    ],
)
def test_what_it_cannot_mean_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, f"[journal]\n{text}")
