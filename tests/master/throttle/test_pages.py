"""Whose turn it is to be told of jobs, where one user has many streams."""

import asyncio

from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.throttle.rates import RateLimit, UserLimits
from ebbtide_master.throttle.throttle import Throttle

STREAMS = 40
ANN = Caller("ann", Role.USER)


class CountingThrottle(Throttle):
    """Counts how often it was asked."""

    asked = 0

    def tell(self, caller: Caller, changes: float) -> float:
        self.asked += 1
        return super().tell(caller, changes)


async def test_streams_wait_in_a_line_and_only_the_first_looks_whether_it_may_go_on() -> None:
    throttle, told = CountingThrottle(UserLimits(watched=RateLimit(per_s=400, burst=1))), list[int]()

    async def stream(number: int) -> None:
        async with throttle.page(ANN, 1):
            told.append(number)

    await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    assert told == list(range(STREAMS))
    assert throttle.asked < 4 * STREAMS  # all of them together, each time: some 800
