"""A node of fake GPUs, and the C stub through which the real `pynvml` sees it."""

import pynvml
import pytest

from tests.agent.gpu.stub import library
from tests.agent.gpu.stub.state import State


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory):
    """The C stub of NVML, compiled: the path of its library."""
    return library.compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_stub(tmp_path_factory):
    """The same as an old driver's: without the newer functions."""
    return library.compile_library(tmp_path_factory.mktemp("old-nvml"), library.NOT_IN_OLD_DRIVERS)


@pytest.fixture(scope="session")
def cuda_stub(nvml_stub):
    """As much of CUDA as a process needs to take memory, beside the stub of NVML."""
    return library.compile_cuda(nvml_stub.parent)


@pytest.fixture
def state(tmp_path):
    state = State(tmp_path / "gpus")
    yield state
    state.close()


@pytest.fixture
def load_stub(state, monkeypatch):
    """Makes `pynvml`, in this process and in those it starts, see the state through a library."""

    def load(path):
        monkeypatch.setenv("EBB_STUB_NVML", str(state.directory))
        library.load(path, monkeypatch)
        library.found_by_children(path, monkeypatch)

    yield load
    shut_down()


def shut_down():
    """End `pynvml` however often it was started."""
    while pynvml._nvmlLib_refcount:
        pynvml.nvmlShutdown()
