"""Define options that leave out what is too old."""

import time
from typing import Final

import click

from ebbtide_cli.commands.verb import argument_type
from ebbtide_cli.times import parse_time

TIME_AGO: Final = argument_type("time", lambda text: parse_time(text, time.time(), ago=True))

TIME_TO_COME: Final = argument_type("time", lambda text: parse_time(text, time.time()))

tail_option: Final = click.option(
    "-n",
    "--tail",
    metavar="N",
    type=click.IntRange(1, 2**31 - 1),
    help="Show only the last N lines or events that exist now.",
)
since_option: Final = click.option(
    "--since",
    metavar="TIME",
    type=TIME_AGO,
    help="Show only what is newer than this: 10m (ago), 09:00 (today), or '2026-11-23 09:00'.",
)
