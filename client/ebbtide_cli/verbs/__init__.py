"""The verbs of ``ebb``, one module each."""
