"""Makes workloads: one reader per file format, one generator per paper."""
