"""``ebb docs``: open the documentation of this version."""

from pathlib import Path

import click

from ebbtide_cli.commands.verb import examples
from ebbtide_cli.documentation import START, Documentation, readable, title
from ebbtide_cli.terminal.browser import has_display, open_page


@click.command(
    epilog=examples("ebb docs", "ebb docs backup", "ebb docs --text commands/submit", "ebb docs --list | grep quota")
)
@click.argument("name", metavar="[PAGE]", default=START)
@click.option("--text", is_flag=True, help="Show the page in this terminal, and open no browser.")
@click.option("--list", "only_list", is_flag=True, help="List the names and titles of all pages.")
def command(name: str, text: bool, only_list: bool) -> None:
    """Open the documentation of this version in a browser, or show it in this terminal. No network is needed.

    PAGE is the name of a page, such as backup, or its place, such as how-to/backup or commands/submit. Without a
    browser, or where the pages were not built as a site, the page is shown as text.
    """
    documentation = Documentation.here()
    if only_list:
        from ebbtide_cli.terminal.drawing import print_columns

        shortest: dict[Path, str] = {}
        for each, page in documentation.names().items():
            shortest.setdefault(page, each)
        print_columns([(each, title(page)) for page, each in shortest.items()])
        return
    page = documentation.find(name)
    built = documentation.as_site(page)
    if built is not None and not text and has_display() and open_page(built.as_uri()):
        print(built.as_uri())
        return
    click.echo_via_pager(readable(page))
