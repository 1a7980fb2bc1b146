"""Lets the training loops of other libraries suspend and resume. Each module needs its library; none is imported here.

Every module publishes checkpoints as `ebbtide.job()` does: whole or not at all, with digests, and the previous one is
kept until newer ones are proven.
"""
