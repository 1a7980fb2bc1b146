"""What a job prints, between the wire and the core: rules for its lines, and lines that were found."""

from typing import Final

from ebbtide_core.model.log_rules import MAX_LINE_LENGTH, MAX_PATTERN_LENGTH, LogAction, LogMatch, LogRule
from ebbtide_core.model.spec import SpecError

from ebbtide_protos.v1 import job_pb2

MAX_GPU_LENGTH: Final = 256
_ACTIONS: Final = {
    job_pb2.LOG_ACTION_IGNORE: LogAction.IGNORE,
    job_pb2.LOG_ACTION_NOTIFY: LogAction.NOTIFY,
    job_pb2.LOG_ACTION_NO_RETRY: LogAction.NO_RETRY,
    job_pb2.LOG_ACTION_EXCLUDE_GPU: LogAction.EXCLUDE_GPU,
    job_pb2.LOG_ACTION_EXCLUDE_NODE: LogAction.EXCLUDE_NODE,
}
_MESSAGES: Final = {action: message for message, action in _ACTIONS.items()}


def rule_from_message(message: job_pb2.LogRule) -> LogRule:
    """A rule; `SpecError` for one whose action is not known."""
    if message.action not in _ACTIONS:
        raise SpecError("--on-log", f"action {message.action} is not known to this version")
    return LogRule(message.pattern, _ACTIONS[message.action])


def rule_to_message(rule: LogRule) -> job_pb2.LogRule:
    """A rule on the wire."""
    return job_pb2.LogRule(pattern=rule.pattern, action=_MESSAGES[rule.action])


def match_from_message(message: job_pb2.LogMatch) -> LogMatch | None:
    """A line that was found, cut to what is told of one; None if what follows from it is not known."""
    action = _ACTIONS.get(message.action)
    if action is None:
        return None
    line = "".join(letter if letter.isprintable() else " " for letter in message.line[:MAX_LINE_LENGTH])
    gpus = tuple([gpu[:MAX_GPU_LENGTH] for gpu in message.gpus])
    return LogMatch(message.pattern[:MAX_PATTERN_LENGTH], action, line.strip(), gpus)
