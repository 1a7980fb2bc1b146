"""What is taken for one job, of what was seen look by look."""

from ebbtide_agent.observing.observation import Key, NodeObservation, ObservedProcess
from ebbtide_agent.observing.tracking import ObservedRun, Tracker

GIB = 2**30
TICKS = 100


def seen(
    pid: int,
    gpus: dict[str, int | None] | None = None,
    started: float = 1000.0,
    above: tuple[Key, ...] = (),
    user: str = "ada",
) -> ObservedProcess:
    held = {"GPU-a": GIB} if gpus is None else gpus
    return ObservedProcess((pid, round(started * TICKS)), held, above, user, "python")


def look(
    at: float, *processes: ObservedProcess, busy: float | None = None, blind: frozenset[str] = frozenset()
) -> NodeObservation:
    return NodeObservation(at, processes, {"GPU-a": busy, "GPU-b": busy}, blind)


def runs_of(*looks: NodeObservation) -> list[ObservedRun]:
    """All runs, over or not, in the order in which they were first seen."""
    tracker = Tracker()
    over = [run for each in looks for run in tracker.take(each)]
    return sorted(over + tracker.runs, key=lambda run: run.id)


def test_a_process_is_a_job_from_the_first_look_that_shows_it_to_the_last() -> None:
    (run,) = runs_of(look(0.0), look(15.0, seen(7)), look(30.0, seen(7)), look(45.0, seen(7)), look(60.0))
    assert (run.first_s, run.last_s, run.seconds) == (15.0, 45.0, 30.0)
    assert (run.user, run.command, run.gpus) == ("ada", "python", {"GPU-a"})


def test_a_run_whose_processes_come_and_go_remembers_only_those_that_are_there() -> None:
    parent = seen(7)
    looks = [look(15.0 * n, parent, seen(100 + n, started=2000.0 + n, above=(parent.key,))) for n in range(50)]
    (run,) = runs_of(*looks)
    assert (len(run.members), len(run.ancestors), len(run.parents), run.seconds) == (2, 1, 1, 735.0)


def test_memory_is_the_most_that_was_held_of_one_gpu() -> None:
    looks = [look(float(at), seen(7, {"GPU-a": a * GIB, "GPU-b": GIB})) for at, a in ((0, 1), (15, 5), (30, 2))]
    (run,) = runs_of(*looks)
    assert run.gpu_mem_bytes == 5 * GIB
    assert run.gpus == {"GPU-a", "GPU-b"}


def test_memory_that_the_driver_does_not_tell_is_not_known() -> None:
    (run,) = runs_of(look(0.0, seen(7, {"GPU-a": None})))
    assert run.gpu_mem_bytes is None


def test_the_same_pid_with_another_start_is_another_job() -> None:
    first, second = runs_of(look(0.0, seen(7, started=10)), look(15.0, seen(7, started=900)))
    assert (first.last_s, second.first_s) == (0.0, 15.0)


def test_ranks_that_one_launcher_started_together_are_one_job() -> None:
    launcher = (5, 99_000)
    ranks = [seen(7 + n, {gpu: GIB}, started=1000.0 + n, above=(launcher,)) for n, gpu in enumerate(["GPU-a", "GPU-b"])]
    (run,) = runs_of(look(0.0, *ranks), look(15.0, *ranks))
    assert run.gpus == {"GPU-a", "GPU-b"}
    assert run.gpu_mem_bytes == GIB


def test_what_a_shell_starts_one_after_the_other_are_several_jobs() -> None:
    shell = (5, 1)
    first, second = seen(7, started=1000.0, above=(shell,)), seen(8, started=1400.0, above=(shell,))
    assert len(runs_of(look(0.0, first), look(15.0, first, second))) == 2


def test_what_two_users_run_is_never_one_job() -> None:
    launcher = (5, 99_000)
    assert len(runs_of(look(0.0, seen(7, above=(launcher,)), seen(8, above=(launcher,), user="bob")))) == 2


def test_a_process_below_one_that_is_on_a_gpu_belongs_to_it_and_adds_to_its_memory() -> None:
    parent = seen(7)
    child = seen(8, started=2000.0, above=(parent.key, (5, 1)))
    (run,) = runs_of(look(0.0, parent), look(15.0, parent, child))
    assert run.gpu_mem_bytes == 2 * GIB


def test_a_parent_that_comes_to_the_gpu_after_its_child_belongs_to_the_same_job() -> None:
    parent = seen(7)
    child = seen(8, above=(parent.key,))
    (run,) = runs_of(look(0.0, child), look(15.0, parent, child), look(30.0, parent))
    assert run.seconds == 30.0


def test_a_process_that_this_machine_does_not_show_is_a_job_of_nobody_known() -> None:
    hidden = ObservedProcess((7, 0), {"GPU-a": GIB})
    (run,) = runs_of(look(0.0, hidden), look(15.0, hidden))
    assert (run.user, run.seconds) == ("", 15.0)


def test_of_a_gpu_that_does_not_answer_nobody_has_left() -> None:
    (run,) = runs_of(look(0.0, seen(7)), look(15.0, blind=frozenset({"GPU-a"})), look(30.0, seen(7)), look(45.0))
    assert (run.first_s, run.last_s) == (0.0, 30.0)


def test_utilisation_is_the_mean_over_the_looks_that_showed_the_job() -> None:
    (run,) = runs_of(look(0.0, busy=1.0), look(15.0, seen(7), busy=0.2), look(30.0, seen(7), busy=0.6), look(45.0))
    assert run.utilisation is not None
    assert abs(run.utilisation - 0.4) < 1e-9


def test_a_run_survives_being_written_down() -> None:
    (run,) = runs_of(look(0.0, seen(7, above=((5, 99_000), (4, 1)))), look(15.0, seen(7), busy=0.5))
    assert ObservedRun.from_json(run.to_json()) == run
