"""Contains the pure core: model, events, commands, the cluster's state machine and the policies.

It does no I/O, reads no clock and awaits nothing.
"""
