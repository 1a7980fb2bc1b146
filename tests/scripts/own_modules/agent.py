"""The user's own agent: nothing of Ebbtide may import it."""

NAME = "the user's agent"
