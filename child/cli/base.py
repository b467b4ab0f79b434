"""What the commands of `trunkline-child` share: the child's folder and its settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer

from trunkline.console import Command, Console, Group, common, declare, here
from trunkline.console.declare import Function
from trunkline.errors import NotFound

if TYPE_CHECKING:  # pydantic takes longer than the rest together, and `--help` does not need it
    from child.home import ChildHome
    from child.settings import ChildSettings
    from trunkline.https import Patience

DEFAULT_HOME = "~/.trunkline/child"


def _options() -> list[click.Option]:
    about = f"The child's folder.  [env: TRUNKLINE_CHILD_HOME; default: {DEFAULT_HOME}]"
    return [common("--home", metavar="FOLDER", help=about)]


class SiteCommand(Command):
    """A command of `trunkline-child`."""

    def more_options(self) -> list[click.Option]:
        return [*_options(), *super().more_options()]


class SiteGroup(Group):
    """A noun of `trunkline-child`."""

    def more_options(self) -> list[click.Option]:
        return [*_options(), *super().more_options()]


def noun(about: str) -> typer.Typer:
    """A group of commands."""
    return declare.noun(about, SiteGroup)


def verb(app: typer.Typer, name: str | None = None) -> Callable[[Function], Function]:
    """A command; what its docstring says is its help."""
    return declare.verb(app, name, SiteCommand)


def folder(console: Console) -> Path:
    """Where this child's folder is said to be."""
    return Path(console.option("home", "TRUNKLINE_CHILD_HOME") or DEFAULT_HOME).expanduser()


def crash_folder(console: Console) -> Path:
    """Where the traceback of an internal error goes."""
    return folder(console) / "logs"


def open_home(*, make: bool = False) -> "ChildHome":
    """The child's folder.

    :param make: for commands that begin one.
    :raises NotFound: there is none, so a wrong `--home` makes no new one.
    :raises StorageFailed: it cannot be written.
    """
    from child.home import ChildHome

    path = folder(here())
    if not make and not path.is_dir():
        raise NotFound(
            f"`--home` should be a child's folder, found none at {path}.", hint="Begin one: trunkline-child enrol, or task add."
        )
    return ChildHome(path)


def settings(home: "ChildHome", flags: Mapping[str, Any] | None = None) -> "ChildSettings":
    """The site's settings: flags, environment, `child.toml`, defaults.

    :raises SettingsError: something is wrong, named with its source.
    """
    from child.settings import load

    return load(home.settings, flags)


def patience() -> "Patience":
    """How long a person's command waits for the master; `--timeout` sets other limits."""
    from trunkline.https import Patience

    limit = here().timeout
    return Patience(connect=min(10.0, limit or 10.0), answer=min(60.0, limit or 60.0), progress=limit or 5.0)
