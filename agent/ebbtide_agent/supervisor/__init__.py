"""The process that supervises one attempt: it launches it, ends it, and records how it ended.

One such process per attempt outlives the agent, so nothing in this package may depend on the agent, on the master, or
on anything but the standard library, the SDK's checkpoints, and this package's few neighbours that keep to the same.
"""
