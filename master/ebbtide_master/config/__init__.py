"""Reads the master's TOML configuration into frozen records, and reports each mistake in one line that names it."""
