"""Places on a node that users share, such as channels: whoever has many leaves room for whoever has few."""


def may_take(own: int, taken: int, most: int) -> bool:
    """Whether a user with so many of the places that are ``taken`` may have another one, of ``most``.

    One who has none gets one as long as there is any; who is alone gets half of them.
    """
    return own < most - taken
