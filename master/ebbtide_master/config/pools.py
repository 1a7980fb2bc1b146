"""``[pools.NAME]``: how each pool is scheduled, and where jobs go that name none."""

from ebbtide_core.policies.registry import DEFAULT_POLICY, PolicyError, create_policy
from ebbtide_core.settings import DEFAULT_POOL, Fitting, PoolSettings

from ebbtide_master.config.table import Table


def read_pools(file: Table) -> dict[str, PoolSettings]:
    """The pools of the file; the pool `DEFAULT_POOL` is always there."""
    pools = {DEFAULT_POOL: PoolSettings()}
    for name, table in file.tables("pools"):
        pools[name] = _read_pool(table)
    return pools


def _read_pool(table: Table) -> PoolSettings:
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
    """An option as the command line would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
