"""What the master keeps: the journal of events, and beside it what must not stand in one."""
