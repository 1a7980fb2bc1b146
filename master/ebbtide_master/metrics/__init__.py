"""Exports sums and states of the cluster to Prometheus, and never the name of a user or a job."""
