"""The cluster's own authority, and the certificates that it gives out."""
