"""The history where the journal is in PostgreSQL: each master keeps one of its own, and all of them say the same."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from ebbtide_core import events as e
from ebbtide_master.store.postgres import PostgresStore

from tests.core.lab import DONE, Lab
from tests.master.history.test_history import (
    JOBS,
    NAMES,
    a_busy_lab,
    append,
    ask,
    catch_up,
    names,
    of_ledger,
    reached,
    sums,
    used,
)
from tests.postgres import Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()


@contextmanager
def leading(url: str, home: Path) -> Iterator[PostgresStore]:
    """A master's journal, while it leads."""
    home.mkdir(exist_ok=True)
    with closing(PostgresStore(url, home)) as store:
        yield store


def test_it_comes_to_the_sums_of_usage_and_is_made_again_after_it_was_deleted(url: str, tmp_path: Path) -> None:
    lab = a_busy_lab()
    with leading(url, tmp_path / "a") as store:
        append(store, lab.journal)
        catch_up(store)
        usage = used(lab.journal, lab.now, 0.0, lab.now + 1.0)
        before = [ask(store, lab.now), ask(store, lab.now, lanes=JOBS)]
        assert sums(before[1]) == pytest.approx(of_ledger(usage, NAMES))
        for path in store.folder.glob("history.db*"):
            path.unlink()
        catch_up(store)
        assert [ask(store, lab.now), ask(store, lab.now, lanes=JOBS)] == before


def test_whichever_master_leads_shows_the_same_and_goes_on_with_the_file_that_it_had(url: str, tmp_path: Path) -> None:
    lab = a_busy_lab()
    with leading(url, tmp_path / "a") as store:
        append(store, lab.journal)
        catch_up(store)
        before = ask(store, lab.now, lanes=JOBS)
    with leading(url, tmp_path / "b") as store:
        catch_up(store)
        assert ask(store, lab.now, lanes=JOBS) == before
        shown = len(lab.journal)
        lab.submit(1, name="later")
        append(store, lab.journal[shown:])
        catch_up(store)
        after = ask(store, lab.now, lanes=JOBS)
        assert after.total == before.total + 1
    with leading(url, tmp_path / "a") as store:
        assert reached(store) == shown, "its file is as old as its own time"
        catch_up(store)
        assert ask(store, lab.now, lanes=JOBS) == after


def test_names_of_removed_jobs_are_gone_from_the_file_of_a_master_that_did_not_lead_then(
    url: str, tmp_path: Path
) -> None:
    lab = Lab(gpus=2)
    job = lab.running(1, name="secret")
    lab.end(job, DONE)
    with leading(url, tmp_path / "a") as store:
        append(store, lab.journal)
        catch_up(store)
        assert names(store, lab.now) == {"1": {"secret"}}
    with leading(url, tmp_path / "b") as store:
        shown = len(lab.journal)
        lab.tell(e.JobRemoved(job.id, "ann"))
        append(store, lab.journal[shown:])
    with leading(url, tmp_path / "a") as store:
        catch_up(store)
        assert names(store, lab.now) == {"1": {""}}
