"""What the nouns of `trunkline` share: where the master is, and how it is asked."""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import typer

from master.home import DEFAULT_STATE
from trunkline.console import Command, Console, Group, common, declare, here
from trunkline.console.declare import Function
from trunkline.errors import NotFound, UsageError
from trunkline.files import storage

if TYPE_CHECKING:  # pydantic and ssl take longer than the rest together, and `--help` needs neither
    from master.settings import MasterSettings
    from trunkline.https import Https

LONG = 3600.0
"""Seconds that an answer is waited for which takes reading whole parameter sets: a replay, a trial."""


def _options() -> list[click.Option]:
    return [
        common("--state", metavar="FOLDER", help=f"The master's folder.  [env: TRUNKLINE_STATE; default: {DEFAULT_STATE}]"),
        common("--settings", metavar="FILE", help="The master's settings.  [env: TRUNKLINE_SETTINGS; default: trunkline.toml]"),
        common("--url", metavar="URL", help="A master on another machine.  [env: TRUNKLINE_URL]"),
        common("--token-file", metavar="FILE", help="Its admin token.  [env: TRUNKLINE_TOKEN_FILE]"),
        common("--ca", metavar="FILE", help="Its authority, ca.pem.  [env: TRUNKLINE_CA]"),
    ]


class AdminCommand(Command):
    """A command of `trunkline`."""

    def more_options(self) -> list[click.Option]:
        return [*_options(), *super().more_options()]


class AdminGroup(Group):
    """A noun of `trunkline`."""

    def more_options(self) -> list[click.Option]:
        return [*_options(), *super().more_options()]


def noun(about: str) -> typer.Typer:
    """A group of commands."""
    return declare.noun(about, AdminGroup)


def verb(app: typer.Typer, name: str | None = None, cls: type[Command] = AdminCommand) -> Callable[[Function], Function]:
    """A command of a noun; what its docstring says is its help."""
    return declare.verb(app, name, cls)


# -- where the master is -----------------------------------------------------------------------------------------------


def config_file(console: Console) -> Path | None:
    """The settings file: named, in this folder, or this user's.

    :raises UsageError: the one that was named is not there.
    """
    named = console.option("settings", "TRUNKLINE_SETTINGS")
    if named is not None:
        if not Path(named).is_file():
            raise UsageError(f"`--settings` should be a file, found none at {named}.")
        return Path(named)
    places = (Path("trunkline.toml"), Path("~/.config/trunkline/trunkline.toml").expanduser())
    return next((path for path in places if path.is_file()), None)


def settings(flags: Mapping[str, Any] | None = None) -> "MasterSettings":
    """The master's settings: flags, environment, file, defaults.

    :raises SettingsError: something is wrong, named with its source.
    """
    from master.settings import load

    console = here()
    found = load(config_file(console), {"state": console.given.get("state"), **(flags or {})})
    return found.model_copy(update={"state": found.state.expanduser().absolute()})  # other processes work in other folders


def state_folder() -> Path:
    """The master's folder, as `settings` has it. Where nothing else is set, without loading what checks settings.

    :raises SettingsError: something is wrong, named with its source.
    """
    console = here()
    others = any(name.startswith("TRUNKLINE_") and name not in _OF_THE_CLI for name in os.environ)
    if others or config_file(console) is not None:
        return settings().state
    return Path(console.option("state", "TRUNKLINE_STATE") or DEFAULT_STATE).expanduser().absolute()


_OF_THE_CLI = frozenset(f"TRUNKLINE_{word}" for word in ("STATE", "SETTINGS", "URL", "TOKEN_FILE", "CA", "OUTPUT"))


def crash_folder(console: Console) -> Path:
    """Where the traceback of an internal error goes; must not fail for a settings file that is wrong."""
    return Path(console.option("state", "TRUNKLINE_STATE") or DEFAULT_STATE).expanduser() / "logs"


def open_master(progress: float = 3.0) -> "Https":
    """A connection to the master with the admin's token.

    :param progress: seconds that it is tried for where `--timeout` does not say.
    :raises Unreachable: nobody runs there.
    :raises NotFound: no master was ever started on the state folder.
    :raises StorageFailed: this user may not read its secrets.
    """
    from trunkline.clock import SystemClock
    from trunkline.https import Https, Patience

    console = here()
    limit = console.timeout
    patience = Patience(connect=min(5.0, limit or 5.0), answer=min(60.0, limit or 60.0), progress=limit or progress)
    rng = random.Random()  # noqa: S311 - jitter, no secret
    url = console.option("url", "TRUNKLINE_URL")
    if url is None:
        from master.api.client import open_admin
        from master.home import MasterHome

        return open_admin(MasterHome(state_folder()), SystemClock(), rng, patience)
    token, authority = (_named(console, name) for name in ("token_file", "ca"))
    return Https(url, authority, token.strip(), SystemClock(), rng, patience)


def _named(console: Console, name: str) -> str:
    flag, variable = f"--{name.replace('_', '-')}", f"TRUNKLINE_{name.upper()}"
    value = console.option(name, variable)
    if value is None:
        raise UsageError(f"`{flag}` should be given with `--url`, found none.", hint=f"Or set {variable}.")
    path = Path(value).expanduser()
    with storage(path):
        if not path.is_file():
            raise NotFound(f"`{flag}` should be a file, found none at {path}.")
        return path.read_text(encoding="utf-8", errors="replace")


def where(*parts: str | int) -> str:
    """A path of the admin's API; names are quoted, whatever was typed.

    :raises NotFound: what was typed is no name, and would make another path of it.
    """
    for part in parts:
        if str(part) in ("", ".", "..") or "/" in str(part):
            raise NotFound(f"a name should be letters, digits, `.`, `_` and `-`, found {str(part)!r}.")
    return "/v1/admin/" + "/".join(quote(str(part), safe="") for part in parts)
