"""The node agent: supervision of attempts, GPU backends, and the link to the master."""
