"""Training loops that others wrote, made to suspend and resume. Each module needs its library; none is imported here.

Every one of them publishes checkpoints as `ebbtide.job()` does: whole or not at all, with digests, and the one before
is kept until the newer ones are proven.
"""
