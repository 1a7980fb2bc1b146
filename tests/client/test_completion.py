"""Completion in a shell: verbs, options and ids, quickly, and silence where there is no master."""

import pytest

from tests.client.scripted_master import make_job


@pytest.fixture
def complete(ebb, monkeypatch):
    """What could stand where the cursor is, behind these words."""

    def run(*words: str, shell: str = "bash") -> list[str]:
        monkeypatch.setattr("ebbtide_cli.commands.completing.PATIENCE_S", 60.0)
        monkeypatch.setenv("_EBB_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["ebb", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        result = ebb()
        assert (result.code, result.err) == (0, "")
        return result.out.split()

    return run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_each_shell_asks_us_back(ebb, shell):
    result = ebb("completion", shell)
    assert result.code == 0
    assert f"_EBB_COMPLETE={shell}_complete" in result.out


def test_verbs_options_and_files_are_completed(complete):
    assert complete("su") == ["plain,supply", "plain,submit", "plain,suspend"]
    assert complete("submit", "--gpu-m") == ["plain,--gpu-mem"]
    assert complete("submit", "--", "tr") == ["file,tr"]


def test_ids_of_unfinished_jobs_are_completed_and_none_twice(complete, master):
    master.add(make_job("17"), make_job("18"), make_job("23"))
    assert complete("show", "1") == ["plain,17", "plain,18"]
    assert complete("cancel", "17", "1") == ["plain,18"]


def test_without_a_master_there_is_nothing_to_complete(complete):
    assert complete("show", "1") == []


def test_verbs_have_their_help_where_a_shell_shows_it(complete, monkeypatch):
    shown = complete("templ", shell="zsh")
    assert shown[:2] == ["plain", "templates"]
    assert "List" in shown
