"""A loop under the real Accelerate, suspended and resumed: the final weights are those of an undisturbed run."""

from pathlib import Path

from tests.sdk.frameworks.running import run

MODULES = ("torch._dynamo", "torch.distributed.fsdp", "accelerate", "ebbtide.integrations.accelerate")


def test_a_loop_under_accelerate_that_is_suspended_ends_with_the_weights_of_one_that_is_not(tmp_path: Path):
    undisturbed, suspended, killed = run(
        "accelerate_loop.py", tmp_path, [], ["TERM=3", "TERM=12", "TERM=27", "TERM=30"], ["KILL=15"], modules=MODULES
    )
    assert undisturbed.codes == [0], undisturbed.log
    assert (suspended.codes, suspended.steps) == ([85, 85, 85, 0], [None, 4, 12, 28]), suspended.log
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 12]), killed.log
    assert suspended.said("sum") == undisturbed.said("sum")
    for job in (suspended, killed):
        assert job.said("digest") == undisturbed.said("digest") != []
