"""Checks the targets of notices that clients name, and sends test notices."""

import secrets
from collections.abc import Iterable
from typing import Any

from ebbtide_core.model.notice_rules import NoticeRule, check_target
from ebbtide_core.model.spec_error import SpecError
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.config.notify import NotifySettings
from ebbtide_master.identity.caller import Role, caller
from ebbtide_master.notify.delivery import UndeliveredError
from ebbtide_master.notify.notice import Notice


class NoticeService:
    """Sends test notices to users' targets."""

    def __init__(self, master: Context) -> None:
        self._clock = master.clock
        self._notifier = master.notifier

    async def TestNotice(self, request: client_pb2.NoticeTest, context: Any) -> client_pb2.NoticeTestReply:
        """Send one test notice. Only operators get the target's answer, because it shows what is in the network."""
        _check_target(request.target, self._notifier.settings)
        text = f"This is a test, sent by {request.user[:64] or 'somebody'} with 'ebb notify test'."
        notice = Notice(f"test-{secrets.token_hex(8)}", 0, self._clock.now(), "test", text, "", {})
        try:
            detail = await self._notifier.send(request.target, notice)
        except UndeliveredError as error:
            return client_pb2.NoticeTestReply(detail=str(error) if _may_know() else "not delivered")
        return client_pb2.NoticeTestReply(delivered=True, detail=detail if _may_know() else "delivered")


def allowed_notices(
    rules: Iterable[NoticeRule], settings: NotifySettings, *, may_drop: bool
) -> tuple[tuple[NoticeRule, ...], list[str]]:
    """Return the rules of a job with allowed targets, and warnings; raise `SpecError` for another target.

    With ``may_drop``, drop its rule instead: a script for Slurm names ``--mail-user`` on any cluster.
    """
    allowed, warnings = list[NoticeRule](), list[str]()
    for rule in rules:
        try:
            _check_target(rule.target, settings)
            allowed.append(rule)
        except SpecError as error:
            if not may_drop:
                raise
            warnings.append(f"{error}: no notification is sent")
    return tuple(allowed), warnings


def _check_target(target: str, settings: NotifySettings) -> None:
    try:
        check_target(target)
        settings.address(target)
    except ValueError as error:
        raise SpecError("--notify", str(error)) from None


def _may_know() -> bool:
    return caller().role >= Role.OPERATOR
