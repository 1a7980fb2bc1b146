"""What an attempt prints and reads: logs, the file of ``--output``, patterns in its lines, and standard input."""
