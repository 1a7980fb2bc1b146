"""The demo's picture and its claims, without running it."""

import os
from pathlib import Path

import pytest
from ebbtide_cli.demo.proof import claims, same_weights, similar_loss
from ebbtide_cli.demo.timeline import timeline
from ebbtide_cli.errors import Failure
from ebbtide_cli.verbs import demo
from ebbtide_protos.v1 import client_pb2, job_pb2

GPUS = ["GPU-a", "GPU-b"]


def attempt(number: int, begin: float, end: float, *gpus: str, resumed: int | None = None) -> client_pb2.AttemptSummary:
    """An attempt on ``gpus`` between two times."""
    held = [job_pb2.GpuAllocation(uuid=gpu) for gpu in gpus]
    return client_pb2.AttemptSummary(
        attempt=number,
        start_time=begin,
        end_time=end,
        resumed_step=resumed,
        allocation=[client_pb2.NodeAllocation(node="n", gpus=held)],
    )


def job(name: str, id: str, attempts: list[client_pb2.AttemptSummary], **facts: object) -> client_pb2.Job:
    """A completed job."""
    return client_pb2.Job(
        job_id=id,
        spec=job_pb2.JobSpec(name=name),
        state=job_pb2.JOB_STATE_COMPLETED,
        exit_code=0,
        attempts=attempts,
        start_time=attempts[0].start_time,
        **facts,
    )


def stepped_aside(requested: float, reason: str) -> client_pb2.Suspension:
    """A suspension that went well and took a second."""
    return client_pb2.Suspension(
        requested=requested,
        exited=requested + 1,
        gpu_free=requested + 1,
        resumed=requested + 3,
        checkpointed=job_pb2.CHECKPOINTED_YES,
        reason=reason,
    )


def a_good_story() -> dict[str, client_pb2.Job]:
    """What the demo sees when everything is as it should be."""
    preempted = stepped_aside(4, "preempted by job 3")
    grew = stepped_aside(10, "growing into idle GPUs: 1 GPU to 2 GPUs")
    long = [attempt(1, 0, 5, "GPU-a"), attempt(2, 7, 10, "GPU-a", resumed=40)]
    elastic = [attempt(1, 0, 11, "GPU-b"), attempt(2, 13, 20, "GPU-a", "GPU-b", resumed=70)]
    return {
        "long": job("long", "1", long, preemptions=1, suspensions=[preempted]),
        "elastic": job(
            "elastic", "2", elastic, resizes=1, suspensions=[grew], progress=job_pb2.Progress(step=100, total=100)
        ),
        "urgent": job("urgent", "3", [attempt(1, 5.5, 7, "GPU-a")]),
    }


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Path]:
    """Two equal sets of weights."""
    torch = pytest.importorskip("torch")
    paths = {name: tmp_path / f"{name}.pt" for name in ("long", "long again")}
    for path in paths.values():
        torch.save({"w": torch.tensor([1.0, 2.0])}, path)
    return paths


def failing(jobs: dict[str, client_pb2.Job], weights: dict[str, Path], losses: dict[str, float]) -> list[str]:
    """The claims that do not hold."""
    return [claim.text for claim in claims(jobs, weights, losses) if not claim.holds]


EQUAL = {"elastic": 0.5, "elastic again": 0.5}


def test_all_claims_hold_of_a_good_story(weights: dict[str, Path]) -> None:
    assert failing(a_good_story(), weights, EQUAL) == []


def test_an_urgent_job_that_started_too_early_is_found(weights: dict[str, Path]) -> None:
    jobs = a_good_story()
    jobs["urgent"].start_time = 4.5
    assert failing(jobs, weights, EQUAL) == ["the urgent job started only when the GPU was free"]


def test_a_suspension_without_a_checkpoint_is_found(weights: dict[str, Path]) -> None:
    jobs = a_good_story()
    jobs["long"].suspensions[0].checkpointed = job_pb2.CHECKPOINTED_NO
    assert failing(jobs, weights, EQUAL) == ["it had written a checkpoint before it left"]


def test_an_elastic_run_that_never_grew_is_found(weights: dict[str, Path]) -> None:
    jobs = a_good_story()
    del jobs["elastic"].suspensions[:]
    assert failing(jobs, weights, EQUAL) == ["the elastic run grew into the idle GPUs"]


def test_a_job_that_failed_is_found(weights: dict[str, Path]) -> None:
    jobs = a_good_story()
    jobs["urgent"].state = job_pb2.JOB_STATE_FAILED
    assert failing(jobs, weights, EQUAL) == ["every job completed"]


def test_one_different_bit_in_the_weights_is_found(weights: dict[str, Path]) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.tensor([1.0, 2.0000002])}, weights["long"])
    assert not same_weights(weights["long"], weights["long again"]).holds


@pytest.mark.parametrize(("loss", "holds"), [(0.54, True), (0.56, False), (0.44, False), (float("nan"), False)])
def test_the_loss_has_to_be_within_the_tolerance(loss: float, holds: bool) -> None:
    assert similar_loss(loss, 0.5).holds is holds


def test_the_picture_shows_who_was_where_and_who_was_leaving() -> None:
    picture = timeline(list(a_good_story().values()), GPUS, 20.0, 20).plain.splitlines()
    assert picture[0] == "GPU 0 ████▒█████···███████"
    assert picture[1] == "GPU 1 ██████████▒··███████"
    assert "long" in picture[3]


def test_a_demo_ends_its_daemons_even_if_its_cluster_cannot_be_brought_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    def fail(*_: object, **__: object) -> None:
        raise Failure("token: it is not valid")

    monkeypatch.setattr(demo, "ensure_master", fail)
    monkeypatch.setattr(demo, "bring_down", fail)
    monkeypatch.setattr(demo, "end_started", lambda: ended.append(True))
    with pytest.raises(Failure, match="it is not valid"), demo._cluster(tmp_path, "4xT4"):
        pytest.fail("there is no cluster")
    assert ended == [True]


def test_a_demo_is_about_its_own_cluster_whatever_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("EBB_HOME", "EBB_MASTER", "EBB_TOKEN")
    for name in names:
        monkeypatch.setenv(name, "another")
    with demo._folder(keep=False) as folder:
        assert [os.environ.get(name) for name in names] == [str(folder), None, None]
