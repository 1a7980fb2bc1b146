"""Makes text of others safe to show."""


def printable(text: str) -> str:
    """Drop control, bidirectional and other invisible characters; white space of any kind becomes a space.

    Names, reasons and commands come from other users, and a terminal obeys what it is shown.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " * letter.isspace() for letter in text)
