"""Reads ``[idle]``: when a job counts as not using its GPUs, and what then happens to the job."""

from typing import Final

from ebbtide_core.model.settings import IdleAction, IdleSettings

from ebbtide_master.config.table import Table

SHORTEST_S: Final = 1.0


def read_idle(file: Table) -> IdleSettings:
    """Return the settings for idle jobs."""
    table, defaults = file.table("idle"), IdleSettings()
    after_s = table.take_duration("after", defaults.after_s)
    warning_s = table.take_duration("warning", defaults.warning_s)
    action = table.take("action", str, defaults.action.value)
    table.finish()
    if action not in [known.value for known in IdleAction]:
        raise table.error("action", f"{action!r} is neither notify nor suspend")
    if after_s < SHORTEST_S:
        raise table.error("after", f"is shorter than {SHORTEST_S:g} s")
    return IdleSettings(after_s=after_s, action=IdleAction(action), warning_s=warning_s)
