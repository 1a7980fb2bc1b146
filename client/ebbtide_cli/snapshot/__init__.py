"""Pack the working directory as it is at submit, for the nodes on which the job will run."""
