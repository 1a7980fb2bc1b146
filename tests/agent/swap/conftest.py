"""The worlds in which jobs are swapped."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.agent.swap.worlds import FakeWorld, StubWorld

_SOURCES = Path(__file__).parent
_SONAMES = {"libcuda.c": "libcuda.so.1", "libnvml.c": "libnvidia-ml.so.1"}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """A directory with both stubs, compiled."""
    directory = tmp_path_factory.mktemp("stubs")
    for source, name in _SONAMES.items():
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(directory / name), str(_SOURCES / source)]
        subprocess.run(command, check=True)
    return directory


@pytest.fixture
def fake_world(tmp_path):
    world = FakeWorld(tmp_path)
    yield world
    world.close()


@pytest.fixture
def stub_world(tmp_path, libraries, monkeypatch):
    world = StubWorld(tmp_path)
    path = os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]))
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    monkeypatch.setenv("EBB_STUB_DIR", str(world.stub_dir))
    yield world
    world.close()


@pytest.fixture(params=[pytest.param("fake", marks=pytest.mark.slow), "C stub"])
def world(request):
    """One of the two: what jobs do in the fake is seen in other tests, too."""
    return request.getfixturevalue("fake_world" if request.param == "fake" else "stub_world")
