"""What an attempt prints is looked through while it runs, and its job never waits for that."""

import pytest
from ebbtide_agent.contract.intent import LogPattern
from ebbtide_agent.supervisor.streams import log_rules
from ebbtide_agent.supervisor.streams.log_rules import LogRules
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import gpus, python

NOTIFY, NO_RETRY, IGNORE = "LOG_ACTION_NOTIFY", "LOG_ACTION_NO_RETRY", "LOG_ACTION_IGNORE"


@pytest.fixture
def printed(tmp_path):
    """The file that an attempt prints into, a piece at a time, and rules that are looked for in it."""

    class Printed:
        path = tmp_path / "output.log"

        def rules(self, *rules):
            self.looking = LogRules([LogPattern(*rule) for rule in rules], [(self.path, ("GPU-0",))])

        def says(self, text):
            with self.path.open("ab") as file:
                file.write(text if isinstance(text, bytes) else text.encode())
            self.looking.look()
            return [match.line for match in self.looking.matches]

        def ends(self):
            self.looking.look(final=True)
            return [match.line for match in self.looking.matches]

    return Printed()


def test_a_line_is_found_once_it_is_whole_however_it_was_written(printed):
    printed.rules(("out of memory", NOTIFY))
    assert printed.says("epoch 1\nCUDA out of") == []
    assert printed.says(" memory. Tried") == []
    assert printed.says(" to allocate\nnext\n") == ["CUDA out of memory. Tried to allocate"]


def test_each_rule_is_told_once_with_its_first_line(printed):
    printed.rules(("loss nan", NOTIFY))
    printed.says("loss nan at 1\n")
    assert printed.says("loss nan at 2\n") == ["loss nan at 1"]


def test_a_line_without_an_end_is_looked_at_when_the_job_has_ended(printed):
    printed.rules(("out of memory", NO_RETRY))
    assert printed.says("out of memory") == []
    assert printed.ends() == ["out of memory"]


def test_a_progress_bar_is_many_lines(printed):
    printed.rules((r"^ 90%", NOTIFY))
    assert printed.says("\r 10%|#\r 90%|###\r") == ["90%|###"]


def test_a_line_that_never_ends_costs_no_more_than_its_beginning(printed):
    printed.rules(("needle", NOTIFY))
    assert printed.says("x" * 10_000) == []
    assert printed.says("needle") == []
    assert printed.says("\nneedle 2\n") == ["needle 2"]


def test_what_is_far_behind_is_passed_over_up_to_the_next_line(printed):
    printed.rules(("early", NOTIFY), ("late", NOTIFY))
    line = b"y" * 99 + b"\n"
    assert printed.says(b"early " + line * (log_rules.MOST_BEHIND_BYTES // 100 + 1) + b"late\n") == ["late"]


def test_a_failure_is_put_down_to_the_last_such_line_and_only_if_it_is_near_the_end(printed):
    printed.rules(("out of memory", NO_RETRY))
    printed.says("out of memory 1\nout of memory 2\n")
    assert printed.ends() == ["out of memory 2"]
    printed.rules(("out of memory", NO_RETRY))
    printed.says("z\n" * log_rules.END_BYTES)
    assert printed.ends() == []


def test_a_line_that_is_to_be_ignored_counts_for_no_rule(printed):
    printed.rules(("memory", NOTIFY), ("retrying", IGNORE))
    assert printed.says("out of memory, retrying\n") == []
    assert printed.says("out of memory\n") == ["out of memory"]


def test_a_pattern_that_takes_too_long_is_given_up_and_others_are_not(printed):
    printed.rules((r"(a+)+$", NOTIFY), ("b", NOTIFY))
    assert printed.says("a" * 60 + "b\n") == ["(not looked for any more: it takes too long)", "a" * 60 + "b"]


def test_a_log_that_is_not_there_says_nothing(printed):
    printed.rules(("x", NOTIFY))
    assert printed.ends() == []


def rule(pattern, action):
    return job_pb2.LogRule(pattern=pattern, action=action)


async def test_the_master_hears_of_a_line_while_the_job_runs(agent):
    async with agent() as node:
        rules = [rule("nan", job_pb2.LOG_ACTION_NOTIFY)]
        await node.launch(python("import time; print('loss nan', flush=True); time.sleep(60)"), log_rules=rules)
        await node.until(lambda: node.status().log_matches)
        [match] = node.status().log_matches
        assert (match.pattern, match.action, match.line) == ("nan", job_pb2.LOG_ACTION_NOTIFY, "loss nan")


async def test_what_is_printed_last_is_told_with_the_end(agent):
    async with agent() as node:
        rules = [rule("out of memory", job_pb2.LOG_ACTION_NO_RETRY)]
        command = ["sh", "-c", "echo CUDA out of memory; exit 1"]
        status = await node.run(command, log_rules=rules, gpus=gpus(1))
        [match] = status.log_matches
        assert (match.line, list(match.gpus)) == ("CUDA out of memory", ["GPU-0"])
