"""The ``ebb`` command: one file per verb."""
