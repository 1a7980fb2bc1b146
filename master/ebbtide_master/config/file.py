"""The whole file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_core.log_rules import DEFAULT_RULES, LogRule
from ebbtide_core.settings import DEFAULT_POOL, PoolSettings, Settings

from ebbtide_master.config.idle import read_idle
from ebbtide_master.config.log_rules import read_log_rules
from ebbtide_master.config.notify import NotifySettings, read_notify
from ebbtide_master.config.pools import read_pools
from ebbtide_master.config.quotas import read_quotas
from ebbtide_master.config.sessions import read_idle_limit
from ebbtide_master.config.table import ConfigError, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the file says. ``settings`` is for the core; the rest is for the master itself.

    ``names_default_pool``: whether it says how the pool `DEFAULT_POOL` is scheduled.
    """

    settings: Settings = field(default_factory=Settings)
    log_rules: tuple[LogRule, ...] = DEFAULT_RULES
    notify: NotifySettings = field(default_factory=NotifySettings)
    names_default_pool: bool = False


def read_config(path: Path) -> Config:
    """Read ``path``; `ConfigError` names the file and the key that is wrong."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return _read(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _read(values: Mapping[str, object]) -> Config:
    file = Table("", values)
    read = read_pools(file)
    pools = {DEFAULT_POOL: PoolSettings(), **read}
    defaults = {key: file.take(key, str, DEFAULT_POOL) for key in ("gpu_pool", "cpu_pool")}
    for key, pool in defaults.items():
        if pool not in pools:
            raise file.error(key, f"there is no pool {pool!r}: there are {', '.join(pools)}")
    limit = read_idle_limit(file)
    settings = Settings(pools=pools, quotas=read_quotas(file), idle=read_idle(file), idle_s=limit, **defaults)
    log_rules, notify = read_log_rules(file), read_notify(file)
    file.finish()
    return Config(settings=settings, log_rules=log_rules, notify=notify, names_default_pool=DEFAULT_POOL in read)
