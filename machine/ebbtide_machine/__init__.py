"""What every program of Ebbtide asks of its machine: processes, threads, locks, and whose files it may trust."""
