"""Who wants to hear of what happens to a job, between the wire and the core."""

from ebbtide_core.model.notice_rules import Moment, NoticeRule
from ebbtide_core.model.spec import SpecError

from ebbtide_protos.v1 import job_pb2


def notice_rule_from_message(message: job_pb2.NoticeRule) -> NoticeRule:
    """A rule; `SpecError` for a moment that is not known."""
    known = {moment.value: moment for moment in Moment}
    for name in message.moments:
        if name not in known:
            raise SpecError("--notify", f"{name[:40]!r} is not known to this version")
    return NoticeRule(tuple([known[name] for name in message.moments]), message.target)


def notice_rule_to_message(rule: NoticeRule) -> job_pb2.NoticeRule:
    """A rule on the wire."""
    return job_pb2.NoticeRule(moments=[moment.value for moment in rule.moments], target=rule.target)
