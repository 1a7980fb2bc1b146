"""The same happens to GPUs on every backend, and every backend says the same of it."""

import pynvml
import pytest
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.nvml import NvmlBackend

from tests.agent.gpu.stub import scenarios
from tests.agent.gpu.stub.conftest import shut_down
from tests.agent.gpu.stub.library import NOT_IN_OLD_DRIVERS
from tests.agent.gpu.stub.scenarios import Run


class OldFakeNvml(FakeNvml):
    """As a driver without the functions of 2021 and later."""

    def suffer(self, call: str, uuid: str) -> None:
        if call in NOT_IN_OLD_DRIVERS:
            raise self.NVMLError(13)
        super().suffer(call, uuid)


@pytest.fixture(params=["fake", "C stub"])
def run(request, state, load_stub):
    """Carries out a scenario on one of the backends."""

    def on_fake(scenario):
        nvml = OldFakeNvml if scenario.library == "old" else FakeNvml
        return Run(state, lambda: NvmlBackend(nvml(state.directory), kind="fake")).carry_out(scenario)

    def on_stub(scenario):
        load_stub(request.getfixturevalue("old_nvml_stub" if scenario.library == "old" else "nvml_stub"))
        return Run(state, _open_stub).carry_out(scenario)

    return on_fake if request.param == "fake" else on_stub


def _open_stub() -> NvmlBackend:
    shut_down()
    return NvmlBackend(pynvml)


@pytest.mark.parametrize("scenario", scenarios.load(), ids=lambda scenario: scenario.title)
def test_every_backend_says_the_same(run, scenario):
    for said, expected in run(scenario):
        assert said == expected
