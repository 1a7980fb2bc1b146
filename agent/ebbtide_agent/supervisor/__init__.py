"""Supervise one attempt: launch it, end it, and record how it ended.

The supervisor is a process of its own, one for each attempt, and outlives the agent. So this package depends on nothing
but the standard library, the SDK's checkpoints, and the few neighbouring modules that keep to the same rule.
"""
