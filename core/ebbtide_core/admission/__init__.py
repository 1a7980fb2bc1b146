"""Which jobs may be placed at all, and in which order: gates, quotas' seats, and the queues."""
