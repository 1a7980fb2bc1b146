"""Ask an attempt to leave, and decide when it is killed."""
