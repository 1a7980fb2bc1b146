"""Defines the error for a job that is refused at submit."""


class SpecError(ValueError):
    """A job cannot be accepted: ``field`` is the option at fault, and the message names the limit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
