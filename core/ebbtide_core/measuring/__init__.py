"""Learns from running jobs: the GPU memory they need, their rates of progress, and interference on shared GPUs."""
