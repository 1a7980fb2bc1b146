"""The configuration file as a text."""

import pytest
from ebbtide_master.config.file import read_config


@pytest.fixture
def read_file(tmp_path):
    """What a file with this text says."""

    def read(text):
        path = tmp_path / "ebbtide.toml"
        path.write_text(text)
        return read_config(path)

    return read
