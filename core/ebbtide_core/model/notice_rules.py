"""Defines notice rules: the moments in a job's life that users want to hear of, and the target of each notice."""

import re
from enum import Enum
from typing import Final

from ebbtide_core.model import limits
from ebbtide_core.model.frozen import frozen

MAX_RULES: Final = limits.MAX_NOTICE_RULES
"""Rules of one job."""
MAX_TARGET_LENGTH: Final = 1024
_MAIL: Final = r"mailto:[^\s@<>,;:\"]{1,64}@[A-Za-z0-9.-]{1,255}"
_HOOK: Final = r"https?://[^\s/@]+(/\S*)?"
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


class Moment(Enum):
    """A moment that a notice may be about; ``ENDED`` stands for completed, failed and cancelled."""

    STARTED = "started"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ENDED = "ended"
    HELD = "held"
    LOG = "log"
    IDLE = "idle"
    UNSAVED = "unsaved"


ENDINGS: Final = frozenset({Moment.COMPLETED, Moment.FAILED, Moment.CANCELLED})


@frozen
class NoticeRule:
    """Notices about any of ``moments`` go to ``target``: a mail address, a web hook, or the name of either."""

    moments: tuple[Moment, ...]
    target: str

    def wants(self, moment: Moment) -> bool:
        """Return whether the rule is about this moment."""
        return moment in self.moments or (moment in ENDINGS and Moment.ENDED in self.moments)


def parse_rule(text: str) -> NoticeRule:
    """Parse ``MOMENT[,MOMENT]=TARGET``; raise ``ValueError`` that says what is wrong with it."""
    names, separator, target = text.partition("=")
    if not separator:
        raise ValueError(f"{text[:40]!r} is not of the form EVENT[,EVENT]=TARGET")
    known = {moment.value: moment for moment in Moment}
    for name in names.split(","):
        if name not in known:
            from ebbtide_core.model.spelling import none_of  # most events are right

            raise ValueError(none_of(name, known))
    check_target(target)
    return NoticeRule(tuple([known[name] for name in dict.fromkeys(names.split(","))]), target)


def check_target(target: str) -> None:
    """Raise ``ValueError`` if ``target`` cannot be a target; the master checks whether it is allowed."""
    kinds = (_MAIL, _HOOK, _NAME)
    if len(target) > MAX_TARGET_LENGTH or not any(re.fullmatch(kind, target) for kind in kinds):
        shown = target.partition("://")[0][:40]  # a hook's address may be a secret
        raise ValueError(f"{shown!r} is neither mailto:ADDRESS nor https://HOST/PATH nor a name")


def is_mail(target: str) -> bool:
    """Return whether ``target`` is a mail address."""
    return target.startswith("mailto:")


def is_hook(target: str) -> bool:
    """Return whether ``target`` is a web hook."""
    return target.startswith(("http://", "https://"))


def shown(target: str) -> str:
    """Return the part of the target that every user may see: anyone who knows a whole hook address can write to it."""
    if not is_hook(target):
        return target
    scheme, _, rest = target.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/…"


def public(rules: tuple[NoticeRule, ...]) -> tuple[NoticeRule, ...]:
    """Return the rules as every user may see them."""
    return tuple([NoticeRule(rule.moments, shown(rule.target)) for rule in rules])
