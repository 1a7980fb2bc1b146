"""What a package of a user's own looks like."""

import training


def steps():
    return training.steps(training.resumed())


save = training.save
