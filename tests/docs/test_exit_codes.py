"""The exit codes of `ebb` as docs/reference/output.md lists them."""

import re

from ebbtide_cli import errors

from tests.docs.pages import DOCS


def test_every_exit_code_of_ebb_is_listed_and_no_other():
    _, _, section = (DOCS / "reference" / "output.md").read_text().partition("\n## Exit codes\n")
    table, _, _ = section.partition("\n## ")
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert listed == sorted(value for name, value in vars(errors).items() if name.isupper())
