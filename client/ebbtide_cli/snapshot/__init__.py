"""The working directory as it is at submit, packed for the nodes on which the job will run."""
