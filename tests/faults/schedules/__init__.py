"""Seeded schedules of faults in one process and in no time: the real master and the real agent's link, on a simulated
clock, network, disk and machines, which hold the truth."""
