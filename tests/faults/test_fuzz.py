"""A slice of what `make chaos` sends; the whole of it is 100,000 messages."""

import asyncio
from pathlib import Path
from random import Random, SystemRandom

from tests.faults.fuzz import fuzz, holds, methods
from tests.faults.odd import Odd


def test_anything_at_all_to_every_method_is_answered_and_others_are_served(tmp_path: Path) -> None:
    seed = SystemRandom().randrange(2**31)
    found = asyncio.run(fuzz(2000, seed, tmp_path))
    assert holds(found), f"python -m tests.faults.fuzz --count 2000 --seed {seed}: {found}"
    assert found["messages"] >= 2000
    assert found["others_asked"] > 0


def test_the_same_seed_makes_the_same_messages() -> None:
    def made() -> list[bytes]:
        odd = Odd(Random(7))
        return [odd.message(method.input_type).SerializeToString(deterministic=True) for method in methods()]

    assert made() == made()
