"""Describe jobs and nodes: as facts for ``--json``, and in words."""
