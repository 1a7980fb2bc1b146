"""Reads ``[log_rules]``: the patterns that every job's output is searched for, by the action that follows."""

from ebbtide_core.model.log_rules import DEFAULT_RULES, MAX_RULES, LogAction, LogRule, checked

from ebbtide_master.config.table import Table


def read_log_rules(file: Table) -> tuple[LogRule, ...]:
    """Return the administrator's rules, and after them the default ones unless ``defaults`` is false."""
    table = file.table("log_rules")
    usual = DEFAULT_RULES if table.take("defaults", bool, True) else ()
    own = [_read_rule(table, action, value) for action in LogAction for value in table.take(action.value, list, [])]
    table.finish()
    if len(own) > MAX_RULES:
        raise file.error("log_rules", f"{len(own)} rules are over the limit of {MAX_RULES}")
    return (*own, *usual)


def _read_rule(table: Table, action: LogAction, value: object) -> LogRule:
    if not isinstance(value, str):
        raise table.error(action.value, f"{value!r} is not a text")
    try:
        return checked(LogRule(value, action))
    except ValueError as error:
        raise table.error(action.value, str(error)) from None
