"""What becomes of jobs and their attempts, from the checks at submission to removal."""
