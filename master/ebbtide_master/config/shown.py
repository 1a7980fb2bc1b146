"""Writes a configuration as texts by the names that its keys have in the file, without anything that is a secret."""

from collections.abc import Iterator

from ebbtide_core.model.quotas import Quota
from ebbtide_core.model.types import WHOLE

from ebbtide_master.config.file import Config


def shown(config: Config) -> dict[str, str]:
    """Return each setting by its name. Of hooks and targets of notices only how many there are is shown."""
    return {name: _text(value) for name, value in _settings(config)}


def _settings(config: Config) -> Iterator[tuple[str, object]]:
    settings = config.settings
    for name, pool in settings.pools.items():
        yield f"pools.{name}.policy", pool.policy
        yield f"pools.{name}.fitting", pool.fitting.value
        yield from ((f"pools.{name}.options.{key}", text) for key, text in pool.options.items())
    yield "gpu_pool", settings.gpu_pool
    yield "cpu_pool", settings.cpu_pool
    yield from _quota("quotas.default", settings.quotas.default)
    for user, quota in settings.quotas.users.items():
        yield from _quota(f"quotas.users.{user}", quota)
    yield "idle.after", f"{settings.idle.after_s:g} s"
    yield "idle.action", settings.idle.action.value
    yield "idle.warning", f"{settings.idle.warning_s:g} s"
    yield "sessions", "never" if settings.idle_s is None else f"{settings.idle_s:g} s"
    yield "journal.store", "PostgreSQL" if config.journal.store else "file"
    yield "journal.backup_every", f"{config.journal.backup_every_s:g} s"
    yield "journal.backup_keep", config.journal.backup_keep
    yield "metrics", "off" if config.metrics_port is None else f"port {config.metrics_port}"
    for name in ("queued", "log_bytes", "uploads", "snapshot_bytes", "reserved_gpu_hours", "priority", "weight"):
        yield f"limits.{name}", getattr(config.bounds, name)
    for name in ("calls", "jobs", "reads"):
        yield f"limits.{name}_per_s", getattr(config.bounds.rates, name).per_s
    yield "fencing.hook", "set" if config.fencing.hook else "none"
    yield "log_rules", f"{len(config.log_rules)} rules"
    yield "notify.targets", f"{len(config.notify.targets)} targets"


def _quota(name: str, quota: Quota) -> Iterator[tuple[str, object]]:
    yield f"{name}.gpus", "no limit" if quota.gpus is None else quota.gpus / WHOLE
    yield f"{name}.queued", "no limit" if quota.queued is None else quota.queued


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
