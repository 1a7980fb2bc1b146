"""Moves a job's GPU memory to host memory and back with the CUDA driver's checkpoint API; the job need not know.

For scripts that cannot save: one process on one GPU, a driver of at least 580, no MPS. Everything that talks to a
driver runs in a process of its own that can be killed (`operation`), in one order (`sequence`), for real GPUs and fake
ones alike (`driver`). Only the standard library, for supervisors start it.
"""
