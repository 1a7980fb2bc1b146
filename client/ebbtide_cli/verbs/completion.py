"""``ebb completion``: what makes a shell complete verbs, options and ids."""

from importlib import import_module

import click

from ebbtide_cli import COMPLETION
from ebbtide_cli.commands.completing import shells
from ebbtide_cli.commands.verb import OneOf, examples


@click.command(
    epilog=examples(
        'ebb completion bash  # in ~/.bashrc: eval "$(ebb completion bash)"',
        'ebb completion zsh  # in ~/.zshrc: eval "$(ebb completion zsh)"',
        "ebb completion fish | source  # in ~/.config/fish/config.fish",
    )
)
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the code that makes a shell complete verbs, options and job ids."""
    # Not at the top: the list of verbs would be imported while it imports this one.
    verbs: click.Command = import_module("ebbtide_cli.commands.verb").ebb
    click.echo(shells()[shell](verbs, {}, "ebb", COMPLETION).source())
