"""The user's own types, which stand in the way of the standard library's for whoever looks here first."""

NAME = "the user's types"
