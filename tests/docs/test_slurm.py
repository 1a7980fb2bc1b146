"""`docs/how-to/slurm.md` has every option of sbatch, and says of each what the code does."""

import re

from ebbtide_cli.submitting.slurm.options import OPTIONS

from tests.docs.pages import REPOSITORY, table

ROWS = table(REPOSITORY / "docs/how-to/slurm.md", "Options")


def test_every_option_of_sbatch_is_in_the_table_with_what_becomes_of_it():
    said = {name: effect for names, effect in ROWS for name in re.findall(r"`--([a-z-]+)", names)}
    assert set(said) == {option.name for option in OPTIONS}
    for option in OPTIONS:
        assert said[option.name].startswith("refused") == bool(option.refused), option.name
        if option.ignored not in ("", "-"):
            assert said[option.name].startswith("left out with a note"), option.name


def test_short_forms_are_those_that_are_read():
    letters = {letter for names, _ in ROWS for letter in re.findall(r"`-(\w)`", names)}
    assert letters == {option.short for option in OPTIONS if option.short}
