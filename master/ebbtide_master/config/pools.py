"""Reads ``[pools.NAME]``: how each pool is scheduled."""

import re
from typing import Final

from ebbtide_core.model.settings import DEFAULT_POLICY, Fitting, PoolSettings
from ebbtide_core.policies.registry import PolicyError, create_policy

from ebbtide_master.config.table import ConfigError, Table

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def read_pools(file: Table) -> dict[str, PoolSettings]:
    """Return the settings of the pools that the file names."""
    return {name: _read_pool(name, table) for name, table in file.tables("pools")}


def _read_pool(name: str, table: Table) -> PoolSettings:
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"pools.{name}: a name is up to 63 letters, digits, '.', '_' and '-', not starting with a mark"
        )
    policy = table.take("policy", str, DEFAULT_POLICY)
    options = {key: _text(value) for key, value in table.take("options", dict, {}).items()}
    fitting = table.take("fitting", str, Fitting.BEST.value)
    table.finish()
    try:
        create_policy(policy, options)
    except PolicyError as error:
        raise table.error("policy", str(error)) from None
    if fitting not in [known.value for known in Fitting]:
        raise table.error("fitting", f"{fitting!r} is neither best nor worst")
    return PoolSettings(policy=policy, options=options, fitting=Fitting(fitting))


def _text(value: object) -> str:
    """Return the value of an option as the command line would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
