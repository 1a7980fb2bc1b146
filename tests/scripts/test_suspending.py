"""Each script is asked to suspend, and comes back: what follows is what the table says."""

import pytest
from ebbtide_master.convert import CHECKPOINTED_MESSAGES

from tests.scripts.cases import (
    BEGINNING,
    CASES,
    LAST_CHECKPOINT,
    SUSPENDED,
    launch,
    log,
    read,
    saved,
    suspend,
    up,
    went_on_from,
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.script, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]
)
async def test_a_script_that_is_asked_to_suspend_ends_as_the_table_says_and_goes_on(agent, case):
    async with agent() as node:
        status = await suspend(node, case)
        outcome = read(status, case)
        assert (outcome.ending, outcome.clean) == (case.ending, case.clean), outcome.reason
        assert status.exit.checkpointed == CHECKPOINTED_MESSAGES[case.checkpointed]
        assert status.exit.killed == case.killed
        assert not node.jobs()
        if outcome.ending is SUSPENDED:
            await launch(node, case, attempt=2)
            await up(node, case, attempt=2)
            check_where_it_goes_on(case, log(node), log(node, attempt=2))


def check_where_it_goes_on(case, before, after):
    match case.goes_on_from:
        case _ if case.goes_on_from == BEGINNING:
            assert "from scratch" in after or went_on_from(after) == [0]
        case _ if case.goes_on_from == LAST_CHECKPOINT:
            # It may have died after it had written the next one, and before it had said so.
            assert 0 <= went_on_from(after)[0] - (saved(before) or [0])[-1] <= 10
            assert went_on_from(after)[0] > 0
        case _:
            assert set(went_on_from(after)) == set(saved(before)[-1:])
