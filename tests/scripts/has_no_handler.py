"""Knows nothing of signals; saves now and then, and not while it is asked to stop."""

import training

first = training.resumed()
for step in training.steps(first):
    if step == first + 10:
        training.save(step)
