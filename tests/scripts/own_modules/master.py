"""The user's own master: nothing of Ebbtide may import it."""

NAME = "the user's master"
