"""What the cluster learns from running jobs: GPU memory, rates of progress, and interference on shared GPUs."""
