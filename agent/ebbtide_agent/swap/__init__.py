"""Moves a job's GPU memory to host memory and back with the CUDA driver's checkpoint API; the job need not know.

It is meant for scripts that cannot save, and takes one process on one GPU, a driver of at least 580, and no MPS.
Everything that talks to a driver runs in a process of its own that can be killed (`operation`), in one order
(`sequence`), for real GPUs and fake ones alike (`driver`). It uses the standard library only, because supervisors
start it.
"""
