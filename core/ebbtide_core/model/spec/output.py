"""What is done with the output of a job, and which news of it are sent."""

from ebbtide_core.model import limits, log_rules, notice_rules, output_name
from ebbtide_core.model.frozen import part
from ebbtide_core.model.log_rules import LogRule
from ebbtide_core.model.notice_rules import NoticeRule
from ebbtide_core.model.spec_error import SpecError, check_text


@part
class OutputSpec:
    """Where the output of a job goes, what is looked for in it, and whom the job's notices reach."""

    __slots__ = ()

    output: str = ""
    """The file that its output is also appended to (see `ebbtide_core.model.output_name`); empty: none."""
    prefix_ranks: bool = False
    """Whether each line of the output names the rank that printed it."""
    log_rules: tuple[LogRule, ...] = ()
    """The job's own log rules, which apply before the administrator's (see `ebbtide_core.model.log_rules`)."""
    notify: tuple[NoticeRule, ...] = ()
    """Which of its events are reported to which targets (see `ebbtide_core.model.notice_rules`)."""


def check_output(asked: OutputSpec) -> None:
    """Raise `SpecError` for the first fault of the output's file name, the log rules and the notices."""
    check_text("--output", asked.output, limits.MAX_PATH_BYTES)
    try:
        output_name.check(asked.output)
    except ValueError as error:
        raise SpecError("--output", str(error)) from None
    if len(asked.log_rules) > log_rules.MAX_RULES:
        raise SpecError("--on-log", f"{len(asked.log_rules)} rules are over the limit of {log_rules.MAX_RULES}")
    for rule in asked.log_rules:
        try:
            log_rules.checked(rule)
        except ValueError as error:
            raise SpecError("--on-log", str(error)) from None
    if len(asked.notify) > notice_rules.MAX_RULES:
        raise SpecError("--notify", f"{len(asked.notify)} rules are over the limit of {notice_rules.MAX_RULES}")
    for notice in asked.notify:
        try:
            notice_rules.check_target(notice.target)
        except ValueError as error:
            raise SpecError("--notify", str(error)) from None
