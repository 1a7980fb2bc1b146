"""List a checkpoint directory when its attempt is asked to leave, and find the files that are cut short when it is
killed."""

import math
import selectors
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide_agent.contract.intent import AttemptOnNode
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.task import HelperTask
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.supervisor.sealing import evidence
from ebbtide_agent.supervisor.sealing.evidence import CheckpointContents

# The most time that the listing may take before the stop signal is sent.
_LOOK_S = 1.0


class CheckpointLook:
    """Lists the directory once, with the user's rights, in a helper's process, while the supervisor goes on."""

    def __init__(self, attempt: AttemptOnNode, selector: selectors.BaseSelector, worker: Worker) -> None:
        self._attempt = attempt
        self._selector = selector
        self._worker = worker
        self._helper_task: HelperTask[Any] | None = None
        self._directory = attempt.checkpoint_dir  # its real path, once that is known
        self.contents: CheckpointContents | None = None  # None: unknown
        self.arguments: dict[int, list[str]] = {}  # of interpreters, by pid, when the listing was made

    @property
    def deadline(self) -> float:
        """When the supervisor stops waiting for the listing, on the monotonic clock."""
        return math.inf if self._helper_task is None else self._helper_task.deadline

    def begin(self, grace_s: float, interpreters: list[int]) -> None:
        """Begin to list the directory and the arguments of these interpreters. Raises OSError."""
        asked = str(self._attempt.checkpoint_dir), interpreters
        within_s = min(_LOOK_S, grace_s / 2)
        looking = HelperTask(
            evidence.look, *asked, account=self._attempt.account, within_s=within_s, worker=self._worker
        )
        self._helper_task = looking
        self._selector.register(looking, selectors.EVENT_READ, self._receive)

    def goes_on(self, now: float) -> bool:
        """Return whether the supervisor still has to wait for the listing."""
        if self._helper_task is not None and now >= self._helper_task.deadline:
            self.give_up()
        return self._helper_task is not None

    def give_up(self) -> None:
        """Stop waiting for the listing."""
        if self._helper_task is not None:
            self._selector.unregister(self._helper_task)
            self._helper_task.drop()
            self._helper_task = None

    def being_written(self, pids: list[int], others_left: bool) -> frozenset[str]:
        """Return the checkpoint files that are cut short when these processes die.

        After a job has left by itself (`others_left`), only files that are new since the listing count as saves: the
        processes that remain may have had the older ones open all the time.
        """
        writing = evidence.being_written(self._directory, pids)
        before = frozenset() if self.contents is None else self.contents.paths()
        return writing - before if others_left else writing

    def _receive(self) -> None:
        if self._helper_task is not None and self._helper_task.receive():
            self._selector.unregister(self._helper_task)
            looking, self._helper_task = self._helper_task, None
            with suppress(OSError, LookupError, TypeError, ValueError):
                found = looking.end()
                if not isinstance(found, NoAnswer):
                    self.contents = CheckpointContents.from_json(found["files"])
                    self._directory = Path(found["real"])
                    self.arguments = {int(pid): list(map(str, of)) for pid, of in found["arguments"].items()}
