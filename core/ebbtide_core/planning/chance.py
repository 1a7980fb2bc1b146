"""Pseudo-random numbers without a random module: they depend only on the values that they are made from."""


def mix(*values: int) -> int:
    """Return a well-spread 64-bit number from ``values`` (the finaliser of SplitMix64, folded over them)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 27
        state = state * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state
