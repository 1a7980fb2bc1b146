"""Where workloads come from: one reader per file format, one generator per paper."""
