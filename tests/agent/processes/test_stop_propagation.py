"""Whom a request to leave reaches, in trees of processes that are written down."""

from dataclasses import replace

import pytest
from ebbtide_agent.processes.launchers import ProcessKind, kind_of
from ebbtide_agent.processes.stop_propagation import (
    LATE_S,
    LINGER_S,
    SETTLE_S,
    SWALLOWED_S,
    LiveProcess,
    Reaction,
    StopPropagation,
    StopStep,
    handlers_in,
)

ME = 1
HANDLER = Reaction.HANDLER


def tree(*processes):
    return {process.pid: process for process in processes}


def one(pid, parent=ME, **facts):
    return LiveProcess(pid, parent, image=(pid,), **facts)


def shell(pid, parent=ME, **facts):
    return one(pid, parent, kind=ProcessKind.SHELL, **facts)


def handler(pid, parent=ME, **facts):
    return one(pid, parent, reaction=HANDLER, **facts)


def without(found, *gone):
    """The tree after these have ended: whoever was below them is the supervisor's child now."""
    left = {pid: process for pid, process in found.items() if pid not in gone}
    return {pid: process if process.parent in left else replace(process, parent=ME) for pid, process in left.items()}


HANDLERS = {
    "the launched process handles it itself": (tree(handler(2), handler(3, 2)), [2]),
    "another process above the script": (tree(one(2), handler(3, 2)), [3]),
    "two of them": (tree(one(2), one(3, 2), handler(4, 3)), [4]),
    "the loaders below a handler are its own business": (tree(one(2), handler(3, 2), handler(4, 3)), [3]),
    "two branches that handle it": (tree(one(2), handler(3, 2), one(4, 2), handler(5, 4)), [3, 5]),
    "a branch that does not handle it is spared": (tree(one(2), one(3, 2), handler(4, 2)), [4]),
    "nobody handles it": (tree(one(2), one(3, 2)), []),
    "below one that only blocks it": (tree(one(2, reaction=Reaction.WAITS), handler(3, 2)), [2, 3]),
    "a shell that handles it above one that does": (tree(shell(2, reaction=HANDLER), handler(3, 2)), [3]),
    "a shell that handles it above one that does not": (tree(shell(2, reaction=HANDLER), one(3, 2)), [2]),
    "torchrun above ranks with loaders": (
        tree(handler(2, kind=ProcessKind.LAUNCHER), handler(3, 2), handler(4, 3), handler(5, 2)),
        [3, 5],
    ),
    "torchrun above ranks without a handler": (tree(handler(2, kind=ProcessKind.LAUNCHER), one(3, 2)), [2]),
    "make, which would remove what is being made": (tree(handler(2, kind=ProcessKind.BUILDER), one(3, 2)), []),
    "a worker that a library started": (tree(one(2), handler(3, 2, kind=ProcessKind.WORKER), handler(4, 3)), []),
}


@pytest.mark.parametrize(("found", "handlers"), HANDLERS.values(), ids=HANDLERS.keys())
def test_the_topmost_processes_that_handle_the_signal_are_asked(found, handlers):
    assert handlers_in(found) == handlers


KINDS = {
    ("python3", "python3.11", ()): ProcessKind.ORDINARY,
    ("bash", "bash", ()): ProcessKind.SHELL,
    ("job.sh", "bash", ()): ProcessKind.SHELL,
    ("xvfb-run", "dash", ()): ProcessKind.LAUNCHER,
    ("sh", "busybox", ()): ProcessKind.SHELL,
    ("sleep", "busybox", ()): ProcessKind.ORDINARY,
    ("sh", "", ()): ProcessKind.SHELL,
    ("make", "make", ()): ProcessKind.BUILDER,
    ("torchrun", "python3.11", ()): ProcessKind.LAUNCHER,
    ("torchrun", "torchrun", ()): ProcessKind.ORDINARY,
    ("Xvfb", "Xvfb", ()): ProcessKind.WORKER,
    ("pt_elastic", "python3.11", ()): ProcessKind.LAUNCHER,
    ("python", "python3.11", ("python", "-m", "torch.distributed.run", "train.py")): ProcessKind.LAUNCHER,
    ("python", "python3.11", ("python", "train.py", "-m")): ProcessKind.ORDINARY,
    ("python", "python3.11", ("python", "-c", "from multiprocessing.spawn import spawn_main")): ProcessKind.SPAWNED,
    ("python", "python3.11", ("-c", "from multiprocessing.resource_tracker import main;main(3)")): ProcessKind.WORKER,
}


@pytest.mark.parametrize(("names", "kind"), KINDS.items(), ids=map(str, KINDS))
def test_what_a_process_is_to_those_below_it_shows_in_its_names(names, kind):
    assert kind_of(*names) is kind


def test_who_answers_is_asked_and_nobody_is_signalled_whoever_stands_above_and_below():
    found = tree(handler(2, kind=ProcessKind.LAUNCHER), handler(3, 2, answers=True), handler(4, 3), handler(5, 2))
    step = StopPropagation().begin(found, 0.0)
    assert (step.tell, step.signal, step.kill) == ((3,), (), ())


def test_a_shell_is_kept_until_those_below_it_have_left_and_is_ended_then():
    found = tree(shell(2), shell(3, 2), handler(4, 3))
    asking = StopPropagation()
    step = asking.begin(found, 0.0)
    assert step.signal == (4,)
    assert not {2, 3} & set(step.release)
    assert not asking.go_on(found, 0.1)
    step = asking.go_on(without(found, 4), 0.2)
    assert (step.signal, step.release, step.parents) == ((3,), (3,), (3,))
    assert not asking.go_on(without(found, 4), 0.3)
    assert asking.go_on(without(found, 4, 3), 0.4).signal == (2,)


def test_nobody_waits_for_a_process_that_blocked_the_signal_while_it_started_and_ignores_it_then():
    found = tree(one(2), one(3, 2, reaction=Reaction.WAITS), handler(4, 2))
    asking = StopPropagation()
    assert {*asking.begin(found, 0.0).signal} == {3, 4}
    assert not asking.go_on(found, 0.1)
    found[3] = one(3, 2, reaction=Reaction.IGNORES)
    assert not asking.go_on(found, 0.5)
    assert asking.mistaken == {3}
    assert asking.go_on(without(found, 4), 0.6).signal == (2,)


def test_when_only_a_process_that_was_starting_was_asked_those_that_can_save_are_asked_next():
    rank = handler(4, 2, kind=ProcessKind.SPAWNED)
    found = tree(one(2), one(3, 2, reaction=Reaction.WAITS), rank)
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3,)
    found[3] = one(3, 2, reaction=Reaction.IGNORES)
    assert asking.go_on(found, 0.1).signal == (4,)
    assert asking.go_on(without(found, 4), 0.2).signal == (2,)


def test_a_process_that_waits_for_the_signal_all_the_time_is_waited_for():
    found = tree(one(2), one(3, 2, reaction=Reaction.WAITS))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3,)
    assert not asking.go_on(found, SWALLOWED_S + 1)
    assert not asking.mistaken
    assert asking.go_on(without(found, 3), SWALLOWED_S + 2).signal == (2,)


def test_a_driver_is_kept_and_ended_as_a_shell_is():
    found = tree(one(2, kind=ProcessKind.DRIVER), shell(3, 2), handler(4, 3))
    asking = StopPropagation()
    step = asking.begin(found, 0.0)
    assert (step.signal, step.release) == ((4,), (4, 4))
    assert asking.go_on(without(found, 4), 0.1).signal == (3,)
    step = asking.go_on(without(found, 4, 3), 0.2)
    assert (step.signal, step.release, step.parents) == ((2,), (2,), (2,))


def test_a_program_without_a_handler_has_the_signal_at_once_when_all_below_it_have_left():
    found = tree(one(2), handler(3, 2), handler(4, 2))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3, 4)
    assert not asking.go_on(without(found, 3), 0.1)
    step = asking.go_on(without(found, 3, 4), 0.2)
    assert (step.signal, step.parents) == ((2,), (2,))


def test_a_shell_waits_for_all_who_were_asked_below_it_and_not_for_others():
    found = tree(shell(2), handler(3, 2), handler(4, 2), shell(5), handler(6, 5))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert not asking.go_on(without(found, 3), 0.1)
    assert asking.go_on(without(found, 3, 4), 0.2).signal == (2,)


def test_a_shell_below_one_that_was_asked_goes_on_for_that_one_may_wait_for_it():
    for above in (handler(3, 2), one(3, 2, answers=True)):
        found = tree(shell(2), above, shell(4, 3), one(5, 4))
        asking = StopPropagation()
        step = asking.begin(found, 0.0)
        assert {4, 5} <= set(step.release)
        assert 2 not in step.release
        assert not asking.go_on(without(found, 5), 0.1)


@pytest.mark.parametrize("kind", [ProcessKind.SHELL, ProcessKind.BUILDER])
def test_what_a_shell_with_a_trap_waits_for_is_ended_if_it_would_begin_another_command_next(kind):
    found = tree(handler(2, kind=ProcessKind.SHELL), replace(one(3, 2, kind=kind), image=(2,)))
    found[2] = replace(found[2], image=(2,))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (2,)
    step = asking.go_on(found, 1.0)
    assert {*step.signal, *step.kill} == {3}


def test_what_a_shell_with_a_trap_waits_for_is_ended_if_it_computes_nothing_though_it_is_a_copy_of_it():
    found = tree(handler(2, kind=ProcessKind.SHELL), replace(shell(3, 2), image=(2,)), one(4, 3))
    found[2] = replace(found[2], image=(2,))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert not asking.go_on(found, SETTLE_S)
    assert {3, 4} <= set(asking.go_on(found, SWALLOWED_S).signal)


def test_a_shell_is_asked_itself_if_what_was_asked_below_it_was_a_copy_that_became_a_command():
    copy = replace(handler(3, 2, kind=ProcessKind.SHELL), image=(2,))
    found = tree(replace(handler(2, kind=ProcessKind.SHELL), image=(2,)), copy)
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3,)
    assert not asking.go_on(found, LATE_S[0])
    became = {**found, 3: one(3, 2)}
    assert asking.go_on(became, LATE_S[1]).signal == (2,)
    assert asking.go_on(without(became, 2), 1.0).signal == (3,)


def test_if_no_shell_is_left_above_a_copy_that_became_a_command_the_rest_is_ended():
    found = tree(
        replace(handler(2, kind=ProcessKind.SHELL), image=(2,)),
        replace(handler(3, 2, kind=ProcessKind.SHELL), image=(2,)),
    )
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3,)
    assert asking.go_on(tree(one(3)), LATE_S[0]).signal == (3,)


def test_a_copy_of_a_shell_that_is_just_ending_has_not_become_a_command():
    found = tree(
        replace(handler(2, kind=ProcessKind.SHELL), image=(2,)),
        replace(handler(3, 2, kind=ProcessKind.SHELL), image=(2,)),
    )
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert not asking.go_on({**found, 3: replace(found[3], image=())}, LATE_S[0])


def test_a_shell_below_another_program_may_become_a_command_in_its_handler():
    found = tree(handler(2, kind=ProcessKind.SHELL), handler(3, 2, kind=ProcessKind.SHELL))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3,)
    assert not asking.go_on({**found, 3: replace(one(3, 2), image=(4,))}, LATE_S[0])


def test_where_nobody_handles_the_signal_a_shell_that_ignores_it_has_its_grace_period():
    found = tree(shell(2, reaction=Reaction.IGNORES), one(3, 2, reaction=Reaction.IGNORES))
    assert StopPropagation().begin(found, 0.0) == StopStep(signal=(3, 2), release=(3, 2))


def test_nobody_waits_for_a_shell_that_itself_waits_for_the_one_above_it():
    found = tree(shell(2), handler(3, 2), shell(4, 2))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    found = without(found, 3)
    assert asking.go_on(found, 1.0).signal == (4,)
    assert not asking.go_on(found, 1.0 + SETTLE_S)
    assert asking.go_on(found, 1.0 + SWALLOWED_S).signal == (2,)


def test_a_shell_is_waited_for_as_long_as_its_trap_does_something():
    found = tree(shell(2), handler(3, 2), shell(4, 2))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    found = without(found, 3)
    assert asking.go_on(found, 1.0).signal == (4,)
    found |= tree(one(5, 4))
    assert not asking.go_on(found, 1.0 + SETTLE_S)
    assert not asking.go_on(found, 1.0 + SWALLOWED_S)


def test_a_shell_that_ignores_the_signal_and_make_are_killed_when_their_turn_comes():
    for above in (shell(2, reaction=Reaction.IGNORES), handler(2, kind=ProcessKind.BUILDER)):
        found, asking = tree(above, handler(3, 2)), StopPropagation()
        asking.begin(found, 0.0)
        assert asking.go_on(without(found, 3), 0.1) == StopStep(kill=(2,), parents=(2,))


def test_who_is_left_behind_by_one_that_was_asked_is_asked_in_its_turn_but_no_copy_of_it():
    found = tree(handler(2), handler(3, 2), replace(handler(4, 2), image=(2,)), one(5, 3))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert asking.go_on(without(found, 2), 0.1).signal == (3,)


def test_who_took_part_has_looked_after_those_below_it():
    found = tree(one(2), handler(3, 2, answers=True), handler(4, 3))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert 4 not in asking.go_on(without(found, 3), 0.1).signal


def test_beside_those_who_take_part_others_are_asked_once_these_have_left_and_before_their_shell_is_ended():
    found = tree(shell(2), handler(3, 2, answers=True), handler(4, 3), handler(5, 2))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == ()
    assert asking.go_on(without(found, 3), 0.1).signal == (5,)
    assert asking.go_on(without(found, 3, 5), 0.2).signal == (2,)


def test_what_a_launcher_has_beside_the_one_that_took_part_is_left_to_the_launcher():
    found = tree(one(2, kind=ProcessKind.LAUNCHER), handler(3, 2, answers=True), handler(4, 2))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert not asking.go_on(without(found, 3), 0.1)


def test_those_above_whoever_was_asked_may_be_drivers_until_it_has_left():
    found = tree(one(2), one(3, 2), handler(4, 3), one(5, 2), one(6, 4))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (4,)
    for after in LATE_S:
        assert asking.next_at() == after
        assert not asking.go_on(found, after)
    assert asking.next_at() == SETTLE_S
    assert asking.may_be_drivers({**found, 7: one(7, 2), 4: replace(found[4], parent=3)}) == {2, 3}
    assert asking.may_be_drivers({**found, 3: handler(3, 2)}) == {2}
    assert asking.may_be_drivers(without(found, 4)) == set()


def test_those_below_a_shell_with_a_trap_may_be_drivers_too_that_it_was_just_starting():
    forked = tree(shell(2, reaction=HANDLER), shell(3, 2))
    asking = StopPropagation()
    assert asking.begin(forked, 0.0).signal == (2,)
    assert asking.next_at() == LATE_S[0]
    assert asking.may_be_drivers(forked) == set()
    started = tree(forked[2], one(3, 2), one(4, 3))
    assert asking.may_be_drivers(started) == {3, 4}
    assert asking.may_be_drivers({**started, 5: one(5, 2)}) == {3, 4}, "the shell's trap has begun 5"


@pytest.mark.parametrize("idle", [True, False])
def test_below_one_that_has_swallowed_the_signal_others_are_asked_in_its_place(idle):
    found = tree(handler(2, cpu_s=1.0), handler(3, 2))
    asking = StopPropagation()
    asking.begin(found, 10.0)
    assert asking.next_at() == 10.0 + SETTLE_S
    assert not asking.go_on(found, asking.next_at())
    assert asking.next_at() == 10.0 + SWALLOWED_S
    later = found if idle else {**found, 2: replace(found[2], cpu_s=2.0)}
    assert asking.go_on(later, asking.next_at()).signal == ((3,) if idle else ())


def test_what_a_shell_with_a_trap_waits_for_is_ended_too_where_another_below_it_can_save():
    """As one in the background that began to handle the signal only after the request."""
    saves, loader, waited_for = handler(3, 2), one(4, 3), one(5, 2)
    found = tree(handler(2, kind=ProcessKind.SHELL), replace(saves, reaction=Reaction.DIES), loader, waited_for)
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (2,)
    found |= {3: saves}
    assert not asking.go_on(found, SETTLE_S)
    assert asking.go_on(found, SWALLOWED_S).signal == (3, 5)


def test_ranks_that_python_spawned_are_asked_if_nobody_else_can_save_and_the_one_above_ends_after_them():
    found = tree(
        one(2),
        handler(3, 2, kind=ProcessKind.SPAWNED),
        handler(4, 2, kind=ProcessKind.SPAWNED),
        one(5, 2, kind=ProcessKind.SPAWNED),
    )
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (3, 4)
    assert not asking.go_on(without(found, 3), 0.1)
    assert asking.go_on(without(found, 3, 4), 0.2).signal == (2,)
    looked_after = tree(handler(2), handler(3, 2, kind=ProcessKind.SPAWNED))
    assert StopPropagation().begin(looked_after, 0.0).signal == (2,)


def test_what_an_idle_shell_waits_for_is_ended_so_that_its_trap_runs_and_what_that_started_is_not():
    found = tree(shell(2, reaction=HANDLER), one(3, 2))
    asking = StopPropagation()
    assert asking.begin(found, 0.0).signal == (2,)
    asking.go_on(found, SETTLE_S)
    step = asking.go_on({**found, 4: one(4, 2)}, SWALLOWED_S)
    assert (step.signal, step.handlers) == ((3,), ())


def test_the_data_loaders_of_what_an_idle_shell_waits_for_are_nobody_who_can_leave_by_themselves():
    found = tree(shell(2, reaction=HANDLER), one(3, 2), handler(4, 3, kind=ProcessKind.WORKER))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    asking.go_on(found, SETTLE_S)
    step = asking.go_on(found, SWALLOWED_S)
    assert (step.signal, step.handlers) == ((3, 4), ())


def test_a_launcher_has_time_to_end_by_itself_and_others_have_not():
    found = tree(handler(2, kind=ProcessKind.LAUNCHER), handler(3, 2, answers=True), one(4, 2), one(5))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    left = without(found, 3)
    assert asking.go_on(left, 1.0).signal == (5,)
    left = without(left, 5)
    assert not asking.go_on(left, 2.0)
    assert asking.next_at() == 1.0 + LINGER_S
    assert asking.go_on(left, 1.0 + LINGER_S).signal == (2, 4)
    assert not asking.go_on(left, 100.0)


def test_if_nobody_can_save_all_are_ended_at_once():
    found = tree(shell(2), one(3, 2), one(4, 2, kind=ProcessKind.BUILDER))
    assert StopPropagation().begin(found, 0.0) == StopStep(signal=(2, 3), kill=(4,), release=(2, 3))


def test_who_begins_to_take_part_after_the_request_is_waited_for_as_well():
    found = tree(shell(2), handler(3, 2))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    more = {**found, 4: one(4, 2, answers=True)}
    assert asking.joined(more, 4, 0.1).tell == (4,)
    assert not asking.joined(more, 4, 0.2)
    assert not asking.go_on(without(more, 3), 0.3)
    assert asking.go_on(without(more, 3, 4), 0.4).signal == (2,)


def test_a_later_process_with_the_same_pid_is_another_one():
    found = tree(shell(2), handler(3, 2))
    asking = StopPropagation()
    asking.begin(found, 0.0)
    assert asking.go_on({**found, 3: replace(found[3], starttime=7)}, 0.1).signal


def test_where_nobody_has_anything_to_save_a_data_loader_that_catches_the_signal_is_nobody_who_can_leave_by_itself():
    found = tree(one(2), handler(3, 2, kind=ProcessKind.WORKER))
    step = StopPropagation().begin(found, 0.0)
    assert (step.signal, step.handlers) == ((2, 3), ())
