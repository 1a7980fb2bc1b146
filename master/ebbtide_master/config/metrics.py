"""Reads ``[metrics]``, where Prometheus finds the metrics."""

from ebbtide_master.config.table import Table

NONE = -1


def read_metrics_port(file: Table) -> int | None:
    """Return the port on loopback, or None if no metrics are served."""
    table = file.table("metrics")
    port = table.take("port", int, NONE)
    table.finish()
    if port == NONE:
        return None
    if not 0 <= port <= 65535:
        raise table.error("port", f"{port} is not a port from 0 (any free one) to 65535")
    return port
