"""Knows nothing of signals; saves every ten steps."""

import training

for step in training.steps(training.resumed()):
    if step % 10 == 0:
        training.save(step)
