"""Files of jobs on a node: checkpoints that are copied, working directories, and what is cleared away."""
