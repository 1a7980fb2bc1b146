"""The master's configuration file: TOML in, frozen records out, and for each mistake one line that names it."""
