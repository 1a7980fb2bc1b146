"""The scenario of the demo, job by job.

On N GPUs, a rigid best-effort run takes one, and an elastic run takes all others. An urgent job arrives and needs one
GPU: the rigid run is the cheaper victim, steps aside, and resumes when the urgent job is done. When the rigid run has
finished, the elastic run grows into its idle GPU.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobClass, LaunchMode
from ebbtide_protos.spec import spec_to_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.demo.board import Board, Jobs
from ebbtide_cli.describing.jobs import finished
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.submitting.job import check
from ebbtide_cli.submitting.passing import job_environment

THREADS = 1
"""Threads of each process; the same everywhere, because sums in another order have other results."""
WARM_UP_STEPS = 200
URGENT_STEPS = 60
TOGETHER_S = 10.0
"""Seconds for which both runs train at least while the long one has its GPU."""
SPARE = 2.0
"""How many times as much work the elastic run gets as it can have done when the long run ends."""
LONG_WIDTH = 16
ELASTIC_WIDTH = 8
ENOUGH_TO_LOSE = 20
"""Steps after which an interruption would lose a noticeable amount of work."""
FASTEST_STEP_S = 1e-3
RESIZE_AFTER_S = 3.0
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Story:
    """One run of the demo: where, on how many GPUs, from which seed; ``tell`` is called with each chapter's title."""

    folder: Path
    examples: Path
    gpu_count: int
    seed: int
    board: Board
    tell: Callable[[str], None]

    def run(self) -> Jobs:
        """Run the whole scenario; return the jobs as they are at its end."""
        long_steps, elastic_steps = self._sizes()
        self.tell("A long best-effort run takes one GPU, an elastic DDP run all others.")
        self._submit(self._digits("long", long_steps))
        self._submit(self._elastic("elastic", elastic_steps))
        self.board.wait_until("the long run trains", lambda jobs: _step(jobs, "long") > ENOUGH_TO_LOSE)
        self.tell("An urgent job arrives. No GPU is free, so a running job has to make room.")
        self._submit(self._urgent())
        self.board.wait_until("the urgent job runs", lambda jobs: _started(jobs, "urgent"))
        self.tell("The long run has checkpointed and stepped aside; the urgent job has its GPU.")
        self.board.wait_until("the long run is back", lambda jobs: _attempts(jobs, "long") > 1)
        self.tell("The urgent job is done, the long run comes back where it left off.")
        self.board.wait_until("the long run is done", lambda jobs: _over(jobs, "long"))
        self.tell("The long run is done, too: the elastic one grows into the idle GPU.")
        self.board.wait_until("the elastic run is done", lambda jobs: _over(jobs, "elastic"))
        self.tell("For the proof, both runs once more, without an interruption.")
        self._submit(self._digits(again("long"), long_steps))
        self._submit(self._elastic(again("elastic"), elastic_steps, gpus=1))
        proof = [again(name) for name in _RUNS]
        return self.board.wait_until("the runs of the proof are done", lambda jobs: all(_over(jobs, n) for n in proof))

    def weights(self, name: str) -> Path:
        """Return the path where a run leaves its final weights."""
        return self.folder / f"{name}.pt"

    def _sizes(self) -> tuple[int, int]:
        """Return the steps of the long and of the elastic run with which the scenario works on this machine.

        Starts take most of the time, and the kernel decides how the two runs share the cores. So both first start
        together and are measured: three starts follow each other until the long run is back.
        """
        self.tell("Two short runs warm up, and measure how fast this machine is.")
        long, elastic = self._paces(
            self._digits("warm-up", WARM_UP_STEPS), self._elastic("warm-up DDP", WARM_UP_STEPS, gpus=self.gpu_count - 1)
        )
        head_start_s = 3 * long.start_s - elastic.start_s
        long_s = TOGETHER_S + max(0.0, -head_start_s)
        return round(long_s / long.step_s), round(SPARE * (head_start_s + long_s) / elastic.step_s)

    def _paces(self, *specs: JobSpec) -> list["_Pace"]:
        """Run these jobs side by side, and return their paces."""
        submitted = time.monotonic()
        for spec in specs:
            self._submit(spec)
        seen: dict[str, list[tuple[float, int]]] = {spec.name: [] for spec in specs}

        def done(jobs: Jobs) -> bool:
            for name, samples in seen.items():
                if (step := _step(jobs, name)) and (not samples or step > samples[-1][1]):
                    samples.append((time.monotonic(), step))
            return all(_over(jobs, name) for name in seen)

        self.board.wait_until("the warm-up is done", done)
        return [_pace(submitted, samples) for samples in seen.values()]

    # --- the jobs ---

    def _digits(self, name: str, steps: int) -> JobSpec:
        script = ["digits.py", "--steps", str(steps), "--width", str(LONG_WIDTH), "--out", str(self.weights(name))]
        return self._spec(name, script, WHOLE, WHOLE)

    def _elastic(self, name: str, steps: int, gpus: int | None = None) -> JobSpec:
        script = [
            "digits_ddp.py",
            "--steps",
            str(steps),
            "--width",
            str(ELASTIC_WIDTH),
            "--out",
            str(self.weights(name)),
        ]
        low, high = (gpus, gpus) if gpus else (self.gpu_count - 1, self.gpu_count)
        return self._spec(name, script, low * WHOLE, high * WHOLE, launch=LaunchMode.DDP)

    def _urgent(self) -> JobSpec:
        script = ["digits.py", "--steps", str(URGENT_STEPS), "--width", str(ELASTIC_WIDTH)]
        return self._spec("urgent", script, WHOLE, WHOLE, job_class=JobClass.TRIAL_AND_ERROR)

    def _spec(
        self,
        name: str,
        script: list[str],
        low: int,
        high: int,
        launch: LaunchMode = LaunchMode.SINGLE,
        job_class: JobClass = JobClass.BEST_EFFORT,
    ) -> JobSpec:
        program, *options = script
        return check(
            JobSpec(
                name=name,
                command=(sys.executable, str(self.examples / program), *options, "--seed", str(self.seed)),
                workdir=str(self.folder),
                env=job_environment(os.environ, [f"OMP_NUM_THREADS={THREADS}"]),
                gpus_min=low,
                gpus_max=high,
                grace_s=GRACE_S,
                launch=launch,
                job_class=job_class,
            )
        )

    def _submit(self, spec: JobSpec) -> None:
        request = client_pb2.SubmitRequest(
            spec=spec_to_message(spec), operation_id=os.urandom(16).hex(), user=user_name()
        )
        with connected(None) as stub:
            ask(stub.Submit, request)


@dataclass(frozen=True, slots=True)
class _Pace:
    """Seconds of a run from its submission to its first step (``start_s``), and for each further step (``step_s``)."""

    start_s: float
    step_s: float


def _pace(submitted: float, samples: list[tuple[float, int]]) -> _Pace:
    (begin, first), (end, last) = samples[0], samples[-1]
    return _Pace(begin - submitted, max((end - begin) / max(1, last - first), FASTEST_STEP_S))


_RUNS = ("long", "elastic")


def again(name: str) -> str:
    """Return the name of a run's uninterrupted twin."""
    return f"{name} again"


def _step(jobs: Jobs, name: str) -> int:
    return jobs[name].progress.step if name in jobs and jobs[name].HasField("progress") else 0


def _attempts(jobs: Jobs, name: str) -> int:
    return sum(attempt.HasField("start_time") for attempt in jobs[name].attempts) if name in jobs else 0


def _started(jobs: Jobs, name: str) -> bool:
    return _attempts(jobs, name) > 0


def _over(jobs: Jobs, name: str) -> bool:
    return name in jobs and finished(jobs[name])
