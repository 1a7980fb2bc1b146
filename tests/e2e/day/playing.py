"""Play a day on a real cluster: people submit and wish, and things break."""

import contextlib
import heapq
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.e2e.cluster import ANY_ACCOUNT, EBB, Cluster, wait_for
from tests.e2e.day.line import Line, Refused
from tests.e2e.day.script import CONFIGS, GRACE_S, NODES, STEP_S, USERS, Happening, Planned, Script

COMPUTING = Path(__file__).with_name("computing.py")
OVER = tuple(map(job_pb2.JobState.Value, ("JOB_STATE_COMPLETED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")))
LONGEST_S = 420.0
"""Of a day, with the time that the last jobs take; a machine that is busy otherwise has some in hand."""
FOREIGN_S, LOST_S, STOPPED_S, SUSPENDED_S = 8.0, 6.0, 5.0, 3.0
KINDS = {"shell": job_pb2.JOB_KIND_SHELL, "notebook": job_pb2.JOB_KIND_NOTEBOOK}


@dataclass(order=True)
class Due:
    """Something to do at a time, in seconds of the day."""

    at: float
    number: int
    act: Callable[[], None] = field(compare=False)


class Player:
    """Plays ``script`` under ``policy``; ``ids`` are the jobs that were acknowledged, by the keys of the script."""

    def __init__(self, cluster: Cluster, script: Script, policy: str) -> None:
        self.cluster = cluster
        self.script = script
        self.policy = policy
        self.line = Line(cluster.home)
        self.lines: dict[str, Line] = {}
        self.witnesses = cluster.home / "witnesses"
        self.ids: dict[str, str] = {}
        self.outages: list[tuple[float, str]] = []
        self.stops: list[tuple[float, float]] = []
        self.notes: list[str] = []
        self.began = time.time()
        self._due: list[Due] = []
        self._numbers = count()
        self._background: list[subprocess.Popen[bytes]] = []

    # --- the cluster ---

    def bring_up(self) -> None:
        """Master and three nodes."""
        home = self.cluster.home
        (home / "ebbtide.toml").write_text(CONFIGS[self.policy])
        self.witnesses.mkdir()
        (home / "bin").mkdir()
        stand_in = f'#!/bin/sh\nshift 2\nexec {sys.executable} -IS {COMPUTING} "$@"\n'
        (home / "bin" / "jupyter").write_text(stand_in)
        (home / "bin" / "jupyter").chmod(0o755)
        self.cluster.up_for_people()
        self.lines = {user: Line(home, self.cluster.add_person(user)) for user in USERS}
        for name in NODES:
            self._start_node(name)
        wait_for("all nodes are up", lambda: self.cluster.nodes_up() >= set(NODES))

    def _start_node(self, name: str) -> None:
        gpus, pool = NODES[name]
        self.cluster.start_workstation(name, gpus, None, "--pool", pool, "--warm", "1", *ANY_ACCOUNT)

    def _in_background(self, *arguments: str) -> None:
        self._background.append(
            subprocess.Popen([*EBB, *arguments], env=self.cluster.environment, stdout=subprocess.DEVNULL)
        )

    # --- the day ---

    def play(self) -> None:
        """From the first submit until every job is over."""
        self.began = time.time()
        for job in self.script.jobs:
            self._at(job.at, lambda job=job: self._submit(job))
        for happening in self.script.happenings:
            self._at(happening.at, lambda happening=happening: self._happen(happening))
        while self._due or self._unfinished():
            if self.now > LONGEST_S:
                break
            if self._due and self._due[0].at <= self.now:
                heapq.heappop(self._due).act()
            else:
                time.sleep(min(0.5, max(0.01, self._due[0].at - self.now)) if self._due else 0.5)
        for process in self._background:
            process.wait(60)

    @property
    def now(self) -> float:
        """Seconds of the day."""
        return time.time() - self.began

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, Due(at, next(self._numbers), act))

    def _note(self, text: str) -> None:
        self.notes.append(f"{self.now:6.1f} {text}")

    def _jobs(self, *states: str) -> list[client_pb2.Job]:
        """In order of submission, only those in these states if any are named."""
        wanted = {job_pb2.JobState.Value(f"JOB_STATE_{state}") for state in states}
        jobs = self.line.ask("ListJobs", client_pb2.ListJobsRequest(all=not states)).jobs
        return [job for job in jobs if not wanted or job.state in wanted]

    def _unfinished(self) -> bool:
        return bool(self.line.ask("ListJobs", client_pb2.ListJobsRequest()).jobs)

    # --- submits ---

    def _submit(self, job: Planned) -> None:
        command = self._command(job)
        if job.user:
            spec = self._spec(job, command)
            tasks = [client_pb2.ArrayTask(index=index) for index in range(job.tasks)]
            operation = f"{self.script.seed}-{job.key}"
            request = client_pb2.SubmitRequest(spec=spec, operation_id=operation, tasks=tasks, max_concurrent=job.limit)
            id = self.lines[job.user].ask("Submit", request).job_id
        else:
            self.line.ask("ShowCluster", client_pb2.ShowClusterRequest())  # a person waits until the master is back
            id = self.cluster.submit(*self._options(job), "--", *command)
        self.ids |= {key: f"{id}{key.removeprefix(job.key)}" for key in (job.key, *job.keys)}
        if job.cancel_s is not None:
            self._at(self.now + job.cancel_s, lambda: self._give_up(job.key))

    def _command(self, job: Planned) -> list[str]:
        arguments = [str(self.witnesses), str(job.steps), str(STEP_S), "5", job.how, str(job.fails)]
        if job.kind == "notebook":
            return ["jupyter", "lab", "--ServerApp.port={port}", *arguments]
        return [sys.executable, *(["-IS"] if job.how == "plain" else []), str(COMPUTING), *arguments]

    def _spec(self, job: Planned, command: list[str]) -> job_pb2.JobSpec:
        low, high = (job_pb2.Share(numerator=number, denominator=1) for number in job.gpus)
        if job.quarter:
            low = high = job_pb2.Share(numerator=1, denominator=4)
        kind = KINDS.get(job.kind, job_pb2.JOB_KIND_BATCH)
        after = [job_pb2.Dependency(job_id=self.ids[key], kind=_after_kind(how)) for how, key in job.after]
        spec = job_pb2.JobSpec(
            name=job.key, command=command, workdir=str(self.cluster.home), env={"PATH": self._path()}, kind=kind,
            gpus_min=low, gpus_max=high, grace_s=GRACE_S, retries=job.retries, pool=job.pool, priority=job.priority,
            time_limit_s=job.time_limit_s, after=after,
        )  # fmt: skip
        if job.kind in KINDS:
            spec.suspend = job_pb2.SUSPEND_MODE_NONE
            spec.job_class = job_pb2.JOB_CLASS_TRIAL_AND_ERROR
        return spec

    def _path(self) -> str:
        return f"{self.cluster.home / 'bin'}:{self.cluster.environment['PATH']}"

    def _options(self, job: Planned) -> list[str]:
        low, high = job.gpus
        size = "1/4" if job.quarter else str(low) if low == high else f"{low}-{high}"
        options = ["--name", job.key, "--grace", f"{GRACE_S:g}s", "--retries", str(job.retries)]
        options += ["--cpu-only"] if high == 0 else ["--gpus", size]
        options += ["--priority", str(job.priority), *(["--pool", job.pool] if job.pool else [])]
        options += ["--array", f"0-{job.tasks - 1}%{job.limit}"] if job.tasks else []
        options += ["--time", f"{job.time_limit_s:g}s"] if job.time_limit_s else []
        for how, key in job.after:
            options += ["--after", f"{how}:{self.ids[key]}"]
        return options

    def _give_up(self, key: str) -> None:
        """Cancel it; a session once somebody has sat at it for a while."""
        [job] = self.line.ask("ListJobs", client_pb2.ListJobsRequest(job_ids=[self.ids[key]])).jobs
        if job.state in OVER:
            return
        if key.startswith(tuple(KINDS)) and job.running_s < 2.0:
            self._at(self.now + 1.0, lambda: self._give_up(key))
        else:
            self.line.ask("Cancel", client_pb2.CancelRequest(job_id=job.job_id))

    # --- what happens ---

    def _happen(self, happening: Happening) -> None:
        dice = random.Random(happening.dice)
        act: Callable[[random.Random], str] = {
            "kill master": self._kill_master, "kill agent": self._kill_agent, "kill process": self._kill_process,
            "lose GPU": self._lose_gpu, "foreign process": self._use_past_it, "stop agent": self._stop_agent,
            "suspend": self._suspend, "hold": self._hold, "resize": self._resize, "priority": self._set_priority,
            "requeue": self._requeue,
        }[happening.what]  # fmt: skip
        try:
            text = act(dice)
        except Refused as refusal:
            text = f"refused: {refusal}"
        self._note(f"{happening.what}: {text}")

    def _kill_master(self, _: random.Random) -> str:
        self.outages.append((time.time(), "master"))
        self.cluster.kill(self.cluster.daemon("master"))
        self._in_background("up")
        return "killed"

    def _kill_agent(self, dice: random.Random) -> str:
        name = dice.choice(list(NODES))
        self.outages.append((time.time(), name))
        self.cluster.kill(self.cluster.daemon(name))
        self._start_node(name)
        return name

    def _stop_agent(self, dice: random.Random) -> str:
        name = dice.choice(list(NODES))
        agent = self.cluster.daemon(name)
        self.stops.append((time.time(), STOPPED_S))
        agent.send_signal(signal.SIGSTOP)
        self._at(self.now + STOPPED_S, lambda: agent.send_signal(signal.SIGCONT))
        return name

    def _kill_process(self, dice: random.Random) -> str:
        """kill -9, of one that can go on and says what it has saved."""
        job = self._one_of(dice, ["RUNNING"], lambda job, plan: job.pid and plan.how == "sdk" and plan.retries > 1)
        if job is None:
            return "nobody"
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(job.pid)
            if str(COMPUTING) in process.cmdline():
                process.send_signal(signal.SIGKILL)
        return f"job {job.job_id}"

    def _lose_gpu(self, dice: random.Random) -> str:
        node = dice.choice(list(NODES))
        gpu = str(dice.randrange(int(NODES[node][0][0])))
        self.cluster.ebb("fake", "lose", gpu, "--node", node)
        self._at(self.now + LOST_S, lambda: self.cluster.ebb("fake", "return", gpu, "--node", node) and None)
        return f"{node} {gpu}"

    def _use_past_it(self, dice: random.Random) -> str:
        node = dice.choice(list(NODES))
        gpu = str(dice.randrange(int(NODES[node][0][0])))
        self._in_background("fake", "foreign", gpu, "10GiB", "--for", f"{FOREIGN_S:g}s", "--node", node)
        return f"{node} {gpu}"

    # --- what people wish ---

    def _one_of(
        self, dice: random.Random, states: list[str], fits: Callable[[client_pb2.Job, Planned], Any]
    ) -> client_pb2.Job | None:
        plans = {self.ids[job.key]: job for job in self.script.jobs if job.key in self.ids and not job.tasks}
        found = [
            job
            for job in self._jobs(*states)
            if (plan := plans.get(job.job_id)) and not plan.stays_as_it_is and fits(job, plan)
        ]
        return dice.choice(found) if found else None

    def _suspend(self, dice: random.Random) -> str:
        job = self._one_of(dice, ["RUNNING"], lambda _, plan: True)
        if job is None:
            return "nobody"
        self.line.ask("Suspend", client_pb2.JobRequest(job_id=job.job_id))
        self._at(self.now + SUSPENDED_S, lambda: self._go_on("Resume", job.job_id))
        return f"job {job.job_id}"

    def _hold(self, dice: random.Random) -> str:
        job = self._one_of(dice, ["PENDING"], lambda _, plan: True)
        if job is None:
            return "nobody"
        self.line.ask("Hold", client_pb2.JobRequest(job_id=job.job_id))
        self._at(self.now + SUSPENDED_S, lambda: self._go_on("Release", job.job_id))
        return f"job {job.job_id}"

    def _go_on(self, method: str, id: str) -> None:
        """Whoever is over meanwhile needs no permission."""
        try:
            self.line.ask(method, client_pb2.JobRequest(job_id=id))
        except Refused as refusal:
            self._note(f"{method} {id}: refused: {refusal}")

    def _resize(self, dice: random.Random) -> str:
        job = self._one_of(dice, ["RUNNING", "PENDING"], lambda _, plan: plan.kind == "elastic")
        if job is None:
            return "nobody"
        one, two = (job_pb2.Share(numerator=number, denominator=1) for number in (1, 2))
        self.line.ask(
            "Resize", client_pb2.ResizeRequest(job_id=job.job_id, gpus_min=one, gpus_max=dice.choice([one, two]))
        )
        return f"job {job.job_id}"

    def _set_priority(self, dice: random.Random) -> str:
        job = self._one_of(dice, ["RUNNING", "PENDING"], lambda _, plan: plan.pool == "trials")
        if job is None:
            return "nobody"
        self.cluster.ebb("set", job.job_id, "--priority", str(dice.randint(10, 80)), code=None)
        return f"job {job.job_id}"

    def _requeue(self, dice: random.Random) -> str:
        job = self._one_of(dice, ["RUNNING"], lambda _, plan: plan.kind not in KINDS)
        if job is None:
            return "nobody"
        request = client_pb2.RequeueRequest(job_id=job.job_id, operation_id=f"{dice.random()}")
        again = self.lines.get(job.user, self.line).ask("Requeue", request).job_id
        if again != job.job_id:  # it was over meanwhile: this is another one
            self.ids[f"{job.spec.name} again"] = again
        return f"job {job.job_id}, as {again}"


def _after_kind(how: str) -> int:
    return int(job_pb2.AfterKind.Value(f"AFTER_KIND_{how.replace('-', '_').upper()}"))
