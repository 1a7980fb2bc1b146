"""Reads the whole configuration file."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ebbtide_core.model.log_rules import DEFAULT_RULES, LogRule
from ebbtide_core.model.settings import DEFAULT_POOL, PoolSettings, Settings
from ebbtide_core.model.spelling import choices

from ebbtide_master.config.database import check_kept_secret
from ebbtide_master.config.fencing import FencingSettings, read_fencing
from ebbtide_master.config.idle import read_idle
from ebbtide_master.config.journal import JournalSettings, read_journal
from ebbtide_master.config.limits import UserBounds, read_limits
from ebbtide_master.config.log_rules import read_log_rules
from ebbtide_master.config.metrics import read_metrics_port
from ebbtide_master.config.notify import NotifySettings, read_notify
from ebbtide_master.config.pools import read_pools
from ebbtide_master.config.quotas import read_quotas
from ebbtide_master.config.sessions import read_idle_limit
from ebbtide_master.config.table import ConfigError, Table

CONFIG_NAME: Final = "ebbtide.toml"
"""Name of the file in a master's home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration. ``settings`` is for the core, and the rest is for the master itself.

    ``names_default_pool`` says whether the file configures the pool `DEFAULT_POOL`.
    """

    settings: Settings = field(default_factory=Settings)
    log_rules: tuple[LogRule, ...] = DEFAULT_RULES
    notify: NotifySettings = field(default_factory=NotifySettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    fencing: FencingSettings = field(default_factory=FencingSettings)
    names_default_pool: bool = False
    metrics_port: int | None = None
    bounds: UserBounds = field(default_factory=UserBounds)


def read_config(path: Path) -> Config:
    """Read the file at ``path``. Raises `ConfigError`, which names the file and the wrong key."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        config = read_sections(Table("", values))
        check_kept_secret(config.journal.store, path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config


def read_sections(file: Table) -> Config:
    """Read all sections of ``file``. Raises `ConfigError` about a key that is wrong or not known."""
    read = read_pools(file)
    pools = {DEFAULT_POOL: PoolSettings(), **read}
    defaults = {key: file.take(key, str, DEFAULT_POOL) for key in ("gpu_pool", "cpu_pool")}
    for key, pool in defaults.items():
        if pool not in pools:
            raise file.error(key, f"there is no pool {pool!r}: there are {choices(pool, pools)}")
    limit = read_idle_limit(file)
    settings = Settings(pools=pools, quotas=read_quotas(file), idle=read_idle(file), idle_s=limit, **defaults)
    log_rules, notify, metrics_port = read_log_rules(file), read_notify(file), read_metrics_port(file)
    journal, bounds, fencing = read_journal(file), read_limits(file), read_fencing(file)
    file.finish()
    return Config(
        settings=settings,
        log_rules=log_rules,
        notify=notify,
        journal=journal,
        fencing=fencing,
        names_default_pool=DEFAULT_POOL in read,
        metrics_port=metrics_port,
        bounds=bounds,
    )
