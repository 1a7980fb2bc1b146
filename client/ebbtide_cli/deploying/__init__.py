"""Make machines that are reached by SSH nodes of a cluster, upgrade them, and take them back."""
