"""``ebb templates``: list named sets of options."""

import shlex

import click

from ebbtide_cli.commands.verb import examples, json_option
from ebbtide_cli.submitting.templates import Template, folders, known_templates, read_template
from ebbtide_cli.terminal.output import print_json

TITLES = ("NAME", "OPTIONS", "DESCRIPTION", "FILE")


@click.command(epilog=examples("ebb templates", "ebb templates --json"))
@json_option
def command(as_json: bool) -> None:
    """List the templates for 'ebb submit --template NAME': files NAME.toml, your own and those for all users.

    A template may have a description, and has a table [options], as in gpus = 2, time = "12h" or env = ["A=1", "B"].
    """
    templates = [read_template(path) for path in known_templates().values()]
    if as_json:
        print_json([_facts(template) for template in templates])
    elif templates:
        from ebbtide_cli.terminal.drawing import print_list

        print_list(TITLES, map(_row, templates), elastic=("OPTIONS", "DESCRIPTION", "FILE"), spare=("FILE",))
    else:
        print(f"No templates: write one into {folders()[0]}.")


def _facts(template: Template) -> dict[str, object]:
    return {
        "name": template.name,
        "description": template.description,
        "options": template.words,
        "path": str(template.path),
    }


def _row(template: Template) -> tuple[str, ...]:
    return (template.name, shlex.join(template.words), template.description, str(template.path))
