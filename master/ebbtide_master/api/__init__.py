"""The clients' side of the master: what each call of `ebb` does, and what it is shown."""
