"""Keeps users, roles and tokens, and says what each caller may do and see."""
