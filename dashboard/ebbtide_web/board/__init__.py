"""What all viewers share: the cluster as everybody may see it, from one stream of the master."""
