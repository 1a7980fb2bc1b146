"""Records what runs on the GPUs of a node that nobody manages, as a workload that can be simulated."""
