"""What is wrong with a job that somebody wants to submit."""


class SpecError(ValueError):
    """A job that cannot be accepted: ``field`` is the option at fault, the message names the limit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
