"""Records what runs on the GPUs of a node without a scheduler, as a workload that can be simulated."""
