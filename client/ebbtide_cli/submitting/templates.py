"""Read templates: named options in TOML files that a user, or an admin for all users, has written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.submitting.directives import Directive
from ebbtide_cli.submitting.topic import Option

FOR_ALL: Final = Path("/etc/ebbtide/templates")

TITLE: Final = "Templates"
OPTIONS: Final[tuple[Option, ...]] = (
    click.option(
        "--template",
        "templates",
        metavar="NAME",
        multiple=True,
        help="Take options from this template; options given here override it ('ebb templates' lists them).",
    ),
)


class Template(NamedTuple):
    """One template's file: ``options`` by their long names, each with its value or a list of values."""

    name: str
    path: Path
    description: str
    options: dict[str, Any]

    def directives(self) -> Iterator[Directive]:
        """Yield the options as a user would type them; `Failure` for a value that cannot be typed."""
        for option, value in self.options.items():
            where = f"{self.path}: {option}"
            if option == "template":
                raise Failure(f"{where}: a template does not name others", USAGE)
            for one in value if isinstance(value, list) else [value]:
                yield Directive(where, _words(where, option, one))

    @property
    def words(self) -> list[str]:
        """All options in one list."""
        return [word for directive in self.directives() for word in directive.words]


def find_template(name: str) -> Template:
    """Return the user's own template of that name, else the one for all users; `Failure` names those that exist."""
    known = known_templates()
    if name not in known:
        from ebbtide_core.model.spelling import choices  # most names are right

        there_are = (
            f"there are {choices(name, known)}" if known else f"there is none in {' or '.join(map(str, folders()))}"
        )
        raise Failure(f"submit: --template: {abbreviated(name)!r} is not known: {there_are}", USAGE)
    return read_template(known[name])


def known_templates() -> dict[str, Path]:
    """Return the templates' files by name, sorted."""
    found = {path.stem: path for folder in reversed(folders()) for path in sorted(folder.glob("*.toml"))}
    return dict(sorted(found.items()))


def folders() -> tuple[Path, Path]:
    """Return the directories of templates, the user's own first."""
    return Home.current().root / "templates", FOR_ALL


def read_template(path: Path) -> Template:
    """Read the template in a file; `Failure` says what is wrong with it."""
    import tomllib  # most jobs have no template

    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or error}", USAGE) from None
    options, description = content.pop("options", {}), content.pop("description", "")
    if content or not isinstance(options, dict) or not isinstance(description, str):
        raise Failure(f"{path}: has a description and a table [options], and nothing else", USAGE)
    return Template(path.stem, path, description, options)


def _words(where: str, option: str, value: Any) -> tuple[str, ...]:
    match value:
        case True:
            return (f"--{option}",)
        case False:
            return (f"--no-{option}",)
        case str() | int() | float():
            return (f"--{option}={value}",)
    raise Failure(f"{where}: is neither a text, nor a number, nor true or false, nor a list of these", USAGE)
