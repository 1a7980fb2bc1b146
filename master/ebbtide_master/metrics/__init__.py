"""What Prometheus can know of the cluster: sums and states, never the name of a user or a job."""
