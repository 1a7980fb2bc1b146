"""An agent that offers only some of its machine's GPUs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_agent.gpu import opening
from ebbtide_agent.gpu.backend import DeviceLink, DeviceLinkKind, Gpu, NoGpus
from ebbtide_agent.gpu.chosen import ChosenGpus, choose, claimed


def a_gpu(index: int, uuid: str, parent: str = "") -> Gpu:
    return Gpu(uuid=uuid, index=index, model="A100", mem_bytes=1 << 30, parent=parent)


GPUS = (a_gpu(0, "GPU-a"), a_gpu(1, "MIG-b1", "GPU-b"), a_gpu(2, "MIG-b2", "GPU-b"))


class Linked(NoGpus):
    def gpus(self) -> tuple[Gpu, ...]:
        return GPUS

    def links(self) -> tuple[DeviceLink, ...]:
        pairs = (("GPU-a", "MIG-b1"), ("MIG-b1", "MIG-b2"))
        return tuple(DeviceLink(one, other, DeviceLinkKind.NVLINK) for one, other in pairs)


def test_gpus_are_chosen_by_index_or_uuid_and_all_slices_of_a_gpu_by_its_own() -> None:
    assert choose(GPUS, ["0", "MIG-b2"]) == {"GPU-a", "MIG-b2"}
    assert choose(GPUS, ["GPU-b"]) == {"MIG-b1", "MIG-b2"}


@pytest.mark.parametrize(
    ("gpus", "names", "says"),
    [
        (GPUS[:1], ["7"], "--only-gpus 7: there is no such GPU; there are 0 (GPU-a)"),
        ((), ["0"], "--only-gpus 0: there is no such GPU; there are none"),
        (GPUS, ["0", "GPU-a"], "--only-gpus GPU-a: GPU-a is named twice"),
        (GPUS, ["2", "GPU-b"], "--only-gpus GPU-b: MIG-b2 is named twice"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(gpus: tuple[Gpu, ...], names: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        choose(gpus, names)


def test_only_the_chosen_ones_and_the_links_between_them_are_seen() -> None:
    chosen = ChosenGpus(Linked(), frozenset({"MIG-b1", "MIG-b2"}))
    assert chosen.gpus() == GPUS[1:]
    assert [(link.one, link.other) for link in chosen.links()] == [("MIG-b1", "MIG-b2")]


def test_no_two_agents_get_the_same_gpu_and_a_dead_one_keeps_none(tmp_path: Path) -> None:
    with claimed(["GPU-a", "GPU-b"], tmp_path):
        taken = pytest.raises(ValueError, match=r"^--only-gpus: another process on this machine has claimed GPU-c$")
        with claimed(["GPU-c"], tmp_path), taken, claimed(["GPU-d", "GPU-c"], tmp_path):
            raise AssertionError("it got a GPU that it may not have")
        with claimed(["GPU-c", "GPU-d"], tmp_path), claimed(["GPU-a"], tmp_path / "other"):
            pass  # what was claimed in vain is free again, and fake GPUs of another agent are others
    code = f"from ebbtide_agent.gpu.chosen import claimed\nwith claimed(['GPU-a'], {str(tmp_path)!r}): print('got it')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "got it\n"
    with claimed(["GPU-a"], tmp_path):
        pass


def test_fake_gpus_are_chosen_like_real_ones(tmp_path: Path) -> None:
    backend = opening.open_backend("4xA100-40GB", tmp_path, in_use=False)
    uuids = choose(backend.gpus(), ["1", "3"])
    assert [found.index for found in ChosenGpus(backend, uuids).gpus()] == [1, 3]
